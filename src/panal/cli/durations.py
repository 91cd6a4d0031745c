"""Lengths of time and sizes of memory as people write them."""

import re

from panal.core.errors import BadRequest

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZES_BYTES = {"": 1, "mb": 10**6, "gb": 10**9, "mib": 2**20, "gib": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


def duration_s(text: str) -> float:
    """Seconds in ``90s``, ``30m``, ``1h`` or ``7d``. Raises BadRequest."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise BadRequest(f"'{text}' is not a length of time: write 90s, 30m, 1h or 7d.")
    return float(match[1]) * _UNITS_S[match[2]]


def size_bytes(text: str) -> int:
    """Bytes in ``6GiB``, ``500MiB``, ``6GB`` or a plain number. Raises BadRequest."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _SIZES_BYTES:
        raise BadRequest(f"'{text}' is not a size: write 6GiB, 500MiB or a number of bytes.")
    return int(float(match[1]) * _SIZES_BYTES[match[2]])
