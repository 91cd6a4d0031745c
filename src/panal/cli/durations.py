"""Lengths of time as people write them."""

import re

from panal.core.errors import BadRequest

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


def duration_s(text: str) -> float:
    """Seconds in ``90s``, ``30m``, ``1h`` or ``7d``. Raises BadRequest."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise BadRequest(f"'{text}' is not a length of time: write 90s, 30m, 1h or 7d.")
    return float(match[1]) * _UNITS_S[match[2]]
