"""What to do when an attempt ended: finish, try again, go on elsewhere, or give up. Pure.

Rules (docs/resume.md): the caller's own mistake is final; nothing sent yet means a fresh try, which
nobody sees; something sent means going on from the last token on a twin replica, if the request and
the answer so far allow it; else an explicit error. Two budgets: tries before the first byte, and
resumes after it. A node that refuses before it began costs nothing of them, but is bounded too.
"""

from dataclasses import dataclass, field

from panal.core.errors import (
    AnswerCut,
    EngineRefused,
    NodeError,
    NodeRefused,
    PanalError,
)
from panal.protocol.messages import Emitted

ATTEMPTS_MAX = 3
REFUSALS_MAX = 8
KEPT_TOKENS_MAX = 32_768
"""An answer longer than this is no longer kept for resuming."""


@dataclass(slots=True)
class AnswerSoFar:
    """The bookkeeping of one answer over all its attempts.

    ``sent`` whether the client has any byte of the answer (headers and comments do not count);
    ``opaque`` whether something that text alone cannot continue went out; ``token_ids`` is None once
    an id was missing. Text is kept in pieces, so that a long answer costs no copying.
    """

    attempts: int = 0
    refusals: int = 0
    sent: bool = False
    opaque: bool = False
    role_sent: bool = False
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] | None = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def keep(self, text: str, token_ids: list[int] | None) -> None:
        """Add a piece. An answer past KEPT_TOKENS_MAX is not kept any more, so that memory is bounded."""
        if self.completion_tokens > KEPT_TOKENS_MAX:
            self.pieces.clear()
            self.token_ids = None
            return
        self.pieces.append(text)
        if self.token_ids is not None and token_ids is not None:
            self.token_ids.extend(token_ids)
        else:
            self.token_ids = None

    def emitted(self) -> Emitted | None:
        """What the next attempt must know, or None where nothing was made."""
        if not self.pieces and not self.role_sent:
            return None
        return Emitted(
            text="".join(self.pieces),
            token_ids=self.token_ids if self.token_ids else None,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            role_sent=self.role_sent,
        )

    def forget(self) -> None:
        """Start over: what nobody has seen is dropped; the role, once told, stays told."""
        self.opaque = False
        self.pieces.clear()
        self.token_ids = []
        self.completion_tokens = 0


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Run the request afresh on another replica."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """Continue the answer on a twin of the replica that made it."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Tell the client."""

    error: PanalError


NextStep = TryAgain | GoOn | GiveUp


def next_step(
    so_far: AnswerSoFar,
    failure: PanalError,
    *,
    resumable: bool,
    twin: str,
    attempts_max: int = ATTEMPTS_MAX,
) -> NextStep:
    """Decide after ``failure`` of an attempt on a replica with this ``twin`` mark."""
    if isinstance(failure, EngineRefused) or not isinstance(failure, NodeError):
        return GiveUp(told(so_far, failure))
    if _spent(so_far, failure, attempts_max):
        return GiveUp(told(so_far, failure))
    can_go_on = resumable and bool(twin) and not so_far.opaque and so_far.completion_tokens <= KEPT_TOKENS_MAX
    if so_far.sent:
        return GoOn() if can_go_on else GiveUp(told(so_far, failure))
    return GoOn() if can_go_on and so_far.pieces else TryAgain()


def _spent(so_far: AnswerSoFar, failure: PanalError, attempts_max: int) -> bool:
    if isinstance(failure, NodeRefused):
        return so_far.refusals >= REFUSALS_MAX
    return so_far.attempts >= attempts_max


def told(so_far: AnswerSoFar, failure: PanalError) -> PanalError:
    """After the first byte, the client hears that its answer was cut, and why."""
    if not so_far.sent or not isinstance(failure, NodeError):
        return failure
    return AnswerCut(f"The answer broke off and could not be continued: {failure.message}")
