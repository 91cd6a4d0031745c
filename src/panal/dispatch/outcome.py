"""What came of a request: everything that metering, logs and metrics want to know, once per request."""

from dataclasses import dataclass, field
from enum import StrEnum

from panal.core.errors import ClientGone, PanalError
from panal.core.ids import NodeId
from panal.core.requests import InferenceRequest, Usage


class End(StrEnum):
    """How a request ended. The words are documented labels of metrics and records."""

    COMPLETED = "completed"
    CLIENT_GONE = "client_gone"
    REFUSED = "refused"
    FAILED = "failed"
    CUT = "cut"


@dataclass(slots=True)
class AttemptLog:
    """One attempt as the gateway saw it. ``tokens`` is what it added to the answer."""

    number: int
    node_id: NodeId
    node_name: str
    prompt_tokens: int = 0
    tokens: int = 0
    duration_s: float = 0.0
    cause: str = ""


@dataclass(slots=True)
class Outcome:
    """The account of one request; times are seconds from its arrival, None where it never came to that."""

    request: InferenceRequest
    end: End
    error: PanalError | None
    usage: Usage
    attempts: list[AttemptLog] = field(default_factory=list)
    queued_s: float = 0.0
    first_byte_s: float | None = None
    total_s: float = 0.0
    resumes: int = 0
    delivered: bool = False
    """Whether the client has any byte of the answer."""


def end_of(error: PanalError | None, *, sent: bool) -> End:
    if error is None:
        return End.COMPLETED
    if isinstance(error, ClientGone):
        return End.CLIENT_GONE
    if sent:
        return End.CUT
    return End.REFUSED if not error.retryable else End.FAILED
