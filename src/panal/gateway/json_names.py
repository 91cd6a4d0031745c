"""Names that stand twice in one JSON object: readers differ on which of the two counts, so neither may.

msgspec takes the last without a word. On the data path only the names that decide something here are looked
at, and only where a scan of the bytes says that there may be a second one.
"""

import json
from typing import Any

from panal.core.errors import BadRequest

DECIDING = ("model", "stream")
_MODEL, _STREAM = (f'"{name}"'.encode() for name in DECIDING)


class _Pairs(list[tuple[str, Any]]):
    """An object, with every name as often as it stands there."""


def check_deciding_names(body: bytes) -> None:
    """``body`` is a valid JSON object. Raises BadRequest if a name in DECIDING stands in it twice."""
    # A name may be written with escapes; no usual encoder escapes plain letters.
    escaped = b"\\" in body and (b"\\u006" in body or b"\\u007" in body)
    if escaped or body.count(_MODEL) > 1 or body.count(_STREAM) > 1:
        pairs = _parsed(body, _Pairs)
        names = [name for name, _value in pairs]
        for name in DECIDING:
            if names.count(name) > 1:
                raise _twice(name)


def check_name_once(body: bytes, name: str) -> None:
    """``body`` is a valid JSON object. Raises BadRequest if this name stands in it twice."""
    if [each for each, _value in _parsed(body, _Pairs)].count(name) > 1:
        raise _twice(name)


def check_names_once(body: bytes) -> None:
    """``body`` is valid JSON. Raises BadRequest if any object in it has a name twice."""
    _parsed(body, _once)


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _value in pairs:
        if name in seen:
            raise _twice(name)
        seen.add(name)


def _parsed(body: bytes, hook: Any) -> Any:
    try:
        return json.loads(body, object_pairs_hook=hook)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"The request body is not valid JSON: {error}") from error


def _twice(name: str) -> BadRequest:
    return BadRequest(f"'{name[:60]}' stands twice in one object of the body.", param=name[:60])
