"""What came of a request: everything that metering, logs and metrics want to know, once per request."""

from dataclasses import dataclass

import msgspec

from panal.core.errors import (
    AttemptTimeout,
    ClientGone,
    DeadlineExceeded,
    FrameGap,
    NodeLeaving,
    NodeLost,
    NodeRefused,
    PanalError,
)
from panal.core.ids import NodeId
from panal.core.requests import InferenceRequest, Usage
from panal.ledger.values import AttemptMade, AttemptOutcome, Outcome


@dataclass(slots=True)
class AttemptLog:
    """One attempt as the gateway saw it. ``tokens`` is what it added to the answer."""

    number: int
    node_id: NodeId
    node_name: str
    prompt_tokens: int = 0
    tokens: int = 0
    duration_s: float = 0.0
    outcome: AttemptOutcome = AttemptOutcome.COMPLETE
    cause: str = ""
    opened_monotonic_s: float = 0.0

    def made(self, *, delivered: bool) -> AttemptMade:
        """The ledger's form of it. What was dropped before the client saw it is not delivered."""
        return AttemptMade(
            number=self.number,
            node_id=self.node_id,
            outcome=self.outcome,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.tokens,
            delivered_tokens=self.tokens if delivered else 0,
            duration_us=round(self.duration_s * 1_000_000),
        )


class Finished(msgspec.Struct):
    """The account of one request; times are seconds from its arrival, None where it never came to that."""

    request: InferenceRequest
    outcome: Outcome
    error: PanalError | None
    shown: Usage
    attempts: list[AttemptLog] = []
    dropped: int = 0
    """How many of the first attempts were started over, so that nothing of them was delivered."""
    queued_s: float = 0.0
    first_token_s: float | None = None
    total_s: float = 0.0

    @property
    def code(self) -> str:
        """``ok`` or the error's stable code, for metrics and logs."""
        return "ok" if self.error is None else self.error.code


def outcome_of(error: PanalError | None, *, sent: bool) -> Outcome:
    """How a request ended for its client; ``sent`` whether it has a part of the answer."""
    if error is None:
        return Outcome.COMPLETE
    if isinstance(error, ClientGone):
        return Outcome.CLIENT_GONE
    if sent:
        return Outcome.CUT
    return Outcome.FAILED if error.retryable else Outcome.REFUSED


def attempt_outcome_of(failure: PanalError | None) -> AttemptOutcome:
    """How an attempt ended, for the ledger."""
    match failure:
        case None:
            return AttemptOutcome.COMPLETE
        case NodeLeaving():
            return AttemptOutcome.HANDED_OVER
        case NodeRefused():
            return AttemptOutcome.REFUSED
        case NodeLost() | FrameGap():
            return AttemptOutcome.LOST
        case AttemptTimeout() | DeadlineExceeded():
            return AttemptOutcome.TIMEOUT
        case ClientGone():
            return AttemptOutcome.CANCELLED
        case _:
            return AttemptOutcome.FAILED
