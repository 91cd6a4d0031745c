"""The one error tree. Every refusal or failure that leaves a package is one of these.

    PanalError
     ├ CallerError        the caller must change something; never retried, never a node's fault
     │   ├ BadRequest · NotAuthenticated · NotAllowed · NotFound · TooLarge · Conflict
     │   ├ ModelNotFound · ModelNotAllowed
     │   └ EngineRefused  the engine's own 4xx, passed on with its body
     ├ CapacityError      try again later
     │   ├ QueueFull · QueueDeadline · ModelResting · RateLimited
     ├ NodeError          an attempt failed; another replica may do better
     │   ├ NodeLost · NodeLeaving · NodeRefused · EngineFailed · FrameGap
     │   └ AttemptTimeout (first_token, between_tokens, total)
     ├ DeadlineExceeded   the request's own time is up
     ├ AnswerCut          an answer broke and could not be continued
     ├ ClientGone         nobody listens any more; not a failure of ours
     ├ ProtocolError      bytes on the bus that are not the protocol
     ├ StoreError · BusError
     └ SettingsError      a start that must not happen, with the sentence that says why

``code`` is stable and documented in docs/errors.md; ``message`` may change and never holds keys or
prompts. HTTP statuses are decided in one table, in gateway/errors.py.
"""


class PanalError(Exception):
    """Something panal refuses or failed to do."""

    code = "internal_error"
    retryable = False

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class CallerError(PanalError):
    """The caller must change something."""

    code = "invalid_request"


class BadRequest(CallerError):
    """The request cannot be understood or asks for something that is not allowed in it."""

    code = "invalid_request"


class NotAuthenticated(CallerError):
    """No valid key. The text is the same for unknown, malformed, expired and deleted keys."""

    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("The API key is missing or not valid. Send 'Authorization: Bearer sk-panal-...'.")


class NotAllowed(CallerError):
    """The caller is known but may not do this."""

    code = "not_allowed"


class NotFound(CallerError):
    """No such thing, or not one that the caller may see."""

    code = "not_found"


class ModelNotFound(CallerError):
    """No model of that name is known here."""

    code = "model_not_found"


class ModelNotAllowed(CallerError):
    """There is a model of that name, but the caller's key may not use it."""

    code = "model_not_allowed"


class TooLarge(CallerError):
    """The request is larger than the limit."""

    code = "request_too_large"


class Conflict(CallerError):
    """The thing is already there or no longer in the state that the request expects."""

    code = "conflict"


class EngineRefused(CallerError):
    """The engine answered the client's own mistake; status and body are the engine's."""

    code = "engine_refused"

    def __init__(self, message: str, *, status: int, body: bytes) -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class CapacityError(PanalError):
    """Not now."""

    code = "overloaded"
    retryable = True


class QueueFull(CapacityError):
    """As many requests wait as are allowed to."""

    code = "queue_full"


class QueueDeadline(CapacityError):
    """The request waited as long as it may and no replica became free."""

    code = "queue_deadline"


class ModelResting(CapacityError):
    """The model is known, but no node can serve it at the moment."""

    code = "no_replica_available"


class RateLimited(CapacityError):
    """A limit of the caller's key, project or tenant is reached."""

    code = "rate_limit_exceeded"


class NodeError(PanalError):
    """An attempt failed on its node."""

    code = "node_failed"
    retryable = True


class NodeLost(NodeError):
    """The node went silent or left the bus."""

    code = "node_lost"


class NodeLeaving(NodeError):
    """The node said that it gives the machine back or shuts down."""

    code = "node_leaving"


class NodeRefused(NodeError):
    """The node may not or cannot take the attempt now."""

    code = "node_refused"


class NodeAbsent(NodeRefused):
    """Nobody heard the attempt, or nothing of it was answered when its node left the bus."""

    code = "node_absent"


class EngineFailed(NodeError):
    """The engine crashed, hung up or answered 5xx."""

    code = "engine_failed"


class FrameGap(NodeError):
    """Frames of an attempt are missing."""

    code = "frame_gap"


class AttemptTimeout(NodeError):
    """A time limit was reached; ``limit`` says which one."""

    code = "timeout"

    def __init__(self, limit: str, seconds: float | None = None) -> None:
        of = "" if seconds is None else f" of {seconds:g} s"
        super().__init__(f"The limit '{limit}'{of} was reached.")
        self.limit = limit


class DeadlineExceeded(PanalError):
    """The request's own time is up: the client's deadline, or the longest life of a request. Says nothing
    of a node."""

    code = "deadline_exceeded"
    retryable = True

    def __init__(self, seconds: float | None = None) -> None:
        of = "" if seconds is None else f" of {seconds:g} s"
        super().__init__(f"The request's deadline{of} is over.")


class AnswerCut(PanalError):
    """The answer broke after its beginning was sent and cannot be continued."""

    code = "answer_cut"


class ClientGone(PanalError):
    """The client left before the end."""

    code = "client_gone"


class ProtocolError(PanalError):
    """A message that does not follow the protocol, or is too large for it."""

    code = "protocol_error"


class StoreError(PanalError):
    """The database cannot be used. ``lasting``: it would refuse later in just the same way."""

    code = "store_unavailable"
    retryable = True

    def __init__(self, message: str, *, retry_after_s: int | None = None, lasting: bool = False) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.lasting = lasting


class BusError(PanalError):
    """The message bus cannot be used."""

    code = "bus_unavailable"
    retryable = True


class SettingsError(PanalError):
    """The program must not start like this; the message says what to change."""

    code = "bad_settings"
