"""OpenAI's error envelope, as a JSON body and as an event of a stream."""

from typing import Any

import msgspec


def error_body(
    message: str, *, kind: str, code: str | None, param: str | None = None, request_id: str = ""
) -> dict[str, Any]:
    """The envelope. ``kind`` is OpenAI's ``type``; ``request_id`` is panal's, for support."""
    error: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code}
    if request_id:
        error["request_id"] = request_id
    return {"error": error}


def error_event(body: dict[str, Any]) -> bytes:
    """One SSE event whose data is the envelope: official clients raise APIError on it."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
