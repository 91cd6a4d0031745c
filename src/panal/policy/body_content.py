"""The walks of body_rules.py: messages with their media, schemas, and trees of unknown fields.

Recursion is bounded by the depth limit of each walk.
"""

from collections.abc import Set
from typing import Any

from panal.core.errors import BadRequest

_MEDIA_ENDINGS = ("_url", "_uri")


def check_messages(messages: Any, most: int, denied: Set[str], depth_max: int) -> None:
    """A list of messages: not too many, media only as ``data:`` URLs, no denied field, not too deep."""
    if not isinstance(messages, list) or len(messages) > most:
        raise BadRequest(f"'messages' must be a list of at most {most} messages.", param="messages")
    for number, message in enumerate(messages):
        if (
            type(message) is dict
            and len(message) == 2
            and type(message.get("content")) is str
            and type(message.get("role")) is str
        ):
            continue
        if not isinstance(message, dict):
            raise BadRequest(f"'messages.{number}' must be an object.", param=f"messages.{number}")
        for name, value in message.items():
            if type(value) is str and name == "content":
                continue
            _check_field(name, value, number, denied, depth_max)


def _check_field(name: str, value: Any, number: int, denied: Set[str], depth_max: int) -> None:
    if name in denied:
        raise _not_allowed(f"messages.{number}.{name}")
    if isinstance(value, str):
        _check_media_text(name, value, f"messages.{number}.{name}")
    if not isinstance(value, (dict, list)):
        return
    path = f"messages.{number}.{name}"
    if name == "content" and isinstance(value, list):
        for index, part in enumerate(value):
            _check_part(part, f"{path}.{index}", denied, depth_max)
    else:
        check_tree(value, path, denied, depth=4, depth_max=depth_max, media=True)


def _check_part(part: Any, path: str, denied: Set[str], depth_max: int) -> None:
    if type(part) is dict and len(part) == 2 and type(part.get("text")) is str and part.get("type") == "text":
        return
    if isinstance(part, (dict, list)):
        check_tree(part, path, denied, depth=5, depth_max=depth_max, media=True)


def check_tree(
    value: Any, path: str, denied: Set[str], *, depth: int, depth_max: int, media: bool = False
) -> None:
    """Every object below ``value``: no denied field, not deeper than ``depth_max``.

    With ``media`` every field that ends in ``_url``, and the ``url`` below one, must be a ``data:`` URL.
    """
    if depth > depth_max:
        raise BadRequest(f"'{path}' is nested deeper than {depth_max} levels.", param=path)
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in denied:
                raise _not_allowed(f"{path}.{name}")
            if media and isinstance(inner, str):
                _check_media_text(name, inner, f"{path}.{name}")
            elif isinstance(inner, (dict, list)):
                check_tree(inner, f"{path}.{name}", denied, depth=depth + 1, depth_max=depth_max, media=media)
    else:
        for index, inner in enumerate(value):
            if isinstance(inner, (dict, list)):
                check_tree(
                    inner, f"{path}.{index}", denied, depth=depth + 1, depth_max=depth_max, media=media
                )


def check_schema(value: Any, path: str, *, depth_max: int, depth: int = 1) -> None:
    """Tools and answer formats: not too deep, and no reference that leaves the schema."""
    if depth > depth_max:
        raise BadRequest(f"'{path}' is nested deeper than {depth_max} levels.", param=path)
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("$ref", "$dynamicRef") and isinstance(inner, str) and not inner.startswith("#"):
                raise BadRequest(
                    f"'{path}.{name}' may only refer into its own schema.", param=f"{path}.{name}"
                )
            if isinstance(inner, (dict, list)):
                check_schema(inner, f"{path}.{name}", depth_max=depth_max, depth=depth + 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            if isinstance(inner, (dict, list)):
                check_schema(inner, f"{path}.{index}", depth_max=depth_max, depth=depth + 1)


def _check_media_text(name: str, text: str, path: str) -> None:
    if (name in ("url", "uri") or name.endswith(_MEDIA_ENDINGS)) and text[:5].lower() != "data:":
        raise BadRequest(f"'{path}' must be a 'data:' URL: panal fetches nothing for a request.", param=path)


def _not_allowed(path: str) -> BadRequest:
    return BadRequest(f"The field '{path}' is not allowed in a request.", param=path)
