"""What came of a request: everything that metering, logs and metrics want to know, once per request."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from panal.core.errors import (
    AttemptTimeout,
    ClientGone,
    DeadlineExceeded,
    EngineFailed,
    FrameGap,
    NodeLeaving,
    NodeLost,
    NodeRefused,
    PanalError,
)
from panal.core.ids import NodeId
from panal.core.requests import InferenceRequest, Usage
from panal.ledger.values import AttemptMade, AttemptOutcome, Outcome

DISTRUSTED = (EngineFailed, NodeLost, FrameGap, AttemptTimeout)
"""Failures that say something of the replica; the caller's mistakes, refusals and departures do not (P25)."""

PREDICTED_FIRST_TOKEN = "predicted_first_token"  # noqa: S105 - a word, no secret
"""The limit of a try that is moved only because it is slower than predicted."""

WARM_UP = "warm_up"
"""The cause of an attempt that only prepared a hand-over, and did."""


@dataclass(slots=True)
class AttemptLog:
    """One attempt as the gateway saw it.

    ``tokens`` is what it made, ``useful`` whether that is part of the answer: not so where the answer was
    started over, or where a node only warmed up (``warm_up``). ``goes_on_after`` is the cause that ended
    the attempt whose answer this one continues; empty where it begins one.
    """

    number: int
    node_id: NodeId
    node_name: str
    prompt_tokens: int = 0
    tokens: int = 0
    duration_s: float = 0.0
    outcome: AttemptOutcome = AttemptOutcome.COMPLETE
    cause: str = ""
    opened_monotonic_s: float = 0.0
    useful: bool = True
    warm_up: bool = False
    goes_on_after: str = ""

    @property
    def speaks(self) -> bool:
        """Whether it is part of the answer as its client has it."""
        return self.useful and self.outcome is not AttemptOutcome.REFUSED

    def made(self) -> AttemptMade:
        """The ledger's form of it. What was dropped before the client saw it is not delivered."""
        return AttemptMade(
            number=self.number,
            node_id=self.node_id,
            outcome=self.outcome,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.tokens,
            delivered_tokens=self.tokens if self.useful else 0,
            duration_us=round(self.duration_s * 1_000_000),
        )


class Finished(msgspec.Struct):
    """The account of one request; times are seconds from its arrival, None where it never came to that."""

    request: InferenceRequest
    outcome: Outcome
    error: PanalError | None
    shown: Usage
    attempts: list[AttemptLog] = []
    lost: bool = False
    """Whether the answer became too long to be kept, so that it could not have been continued."""
    queued_s: float = 0.0
    first_token_s: float | None = None
    total_s: float = 0.0

    @property
    def resumes(self) -> int:
        """How often the answer went on elsewhere."""
        return resumes_of(self.attempts)

    @property
    def code(self) -> str:
        """``ok`` or the error's stable code, for metrics and logs."""
        return "ok" if self.error is None else self.error.code


def resumes_of(attempts: Sequence[AttemptLog]) -> int:
    """How often an answer went on elsewhere, as far as its client's text shows it."""
    return sum(1 for attempt in attempts if attempt.goes_on_after and attempt.speaks)


def speakers_of(attempts: Sequence[AttemptLog]) -> list[str]:
    """The nodes from which the client's text comes, in order."""
    return [attempt.node_name for attempt in attempts if attempt.speaks]


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


def distrusts(failure: PanalError | None) -> bool:
    """Whether the replica is to be tried last for a moment; being slower than predicted is no fault."""
    slow = isinstance(failure, AttemptTimeout) and failure.limit == PREDICTED_FIRST_TOKEN
    return isinstance(failure, DISTRUSTED) and not slow
