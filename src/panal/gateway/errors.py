"""The one table from errors to HTTP, and the OpenAI envelope around them."""

from dataclasses import dataclass

import msgspec

from panal.core import errors
from panal.core.errors import EngineRefused, PanalError
from panal.protocol.openai.errors import error_body, error_event
from panal.telemetry.redaction import redacted


@dataclass(frozen=True, slots=True)
class Shape:
    """An error's HTTP status and OpenAI ``type``."""

    status: int
    kind: str


SHAPES: dict[type[PanalError], Shape] = {
    errors.PanalError: Shape(500, "server_error"),
    errors.CallerError: Shape(400, "invalid_request_error"),
    errors.BadRequest: Shape(400, "invalid_request_error"),
    errors.NotAuthenticated: Shape(401, "authentication_error"),
    errors.NotAllowed: Shape(403, "permission_error"),
    errors.NotFound: Shape(404, "invalid_request_error"),
    errors.ModelNotFound: Shape(404, "invalid_request_error"),
    errors.ModelNotAllowed: Shape(403, "permission_error"),
    errors.TooLarge: Shape(413, "invalid_request_error"),
    errors.Conflict: Shape(409, "invalid_request_error"),
    errors.EngineRefused: Shape(400, "invalid_request_error"),
    errors.CapacityError: Shape(429, "rate_limit_error"),
    errors.QueueFull: Shape(429, "rate_limit_error"),
    errors.RateLimited: Shape(429, "rate_limit_error"),
    errors.QueueDeadline: Shape(503, "server_error"),
    errors.ModelResting: Shape(503, "server_error"),
    errors.NodeError: Shape(502, "server_error"),
    errors.NodeLost: Shape(502, "server_error"),
    errors.NodeLeaving: Shape(503, "server_error"),
    errors.NodeRefused: Shape(503, "server_error"),
    errors.NodeAbsent: Shape(503, "server_error"),
    errors.EngineFailed: Shape(502, "server_error"),
    errors.FrameGap: Shape(502, "server_error"),
    errors.AttemptTimeout: Shape(504, "timeout_error"),
    errors.DeadlineExceeded: Shape(504, "timeout_error"),
    errors.AnswerCut: Shape(502, "server_error"),
    errors.ClientGone: Shape(499, "server_error"),
    errors.ProtocolError: Shape(502, "server_error"),
    errors.StoreError: Shape(503, "server_error"),
    errors.BusError: Shape(503, "server_error"),
    errors.SettingsError: Shape(500, "server_error"),
}
"""Every error class has a row; a test enumerates the tree and fails on a missing one."""

RETRY_AFTER_S_DEFAULT = 1


def shape_of(error: PanalError) -> Shape:
    """The row of an error's own class."""
    if isinstance(error, EngineRefused):
        return Shape(error.status, SHAPES[EngineRefused].kind)
    return SHAPES[type(error)]


def body_of(error: PanalError, request_id: str) -> bytes:
    """The JSON body. The engine's own words on the client's mistake are passed on as they are."""
    if isinstance(error, EngineRefused) and error.body:
        return error.body
    return msgspec.json.encode(_envelope(error, request_id))


def event_of(error: PanalError, request_id: str) -> bytes:
    """The last event of a stream that broke. No ``[DONE]`` follows it."""
    return error_event(_envelope(error, request_id))


def headers_of(error: PanalError, request_id: str) -> list[tuple[bytes, bytes]]:
    """Response headers beside length and type."""
    headers = [(b"x-request-id", request_id.encode())] if request_id else []
    retry_after_s = error.retry_after_s
    if retry_after_s is None and shape_of(error).status in (429, 503):
        retry_after_s = RETRY_AFTER_S_DEFAULT
    if retry_after_s is not None:
        headers.append((b"retry-after", str(retry_after_s).encode()))
    if isinstance(error, errors.NotAuthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def _envelope(error: PanalError, request_id: str) -> dict[str, object]:
    """A key that a client put in the wrong place, such as a path, is not repeated to it."""
    return error_body(
        redacted(error.message),
        kind=shape_of(error).kind,
        code=error.code,
        param=None if error.param is None else redacted(error.param),
        request_id=request_id,
    )
