"""What to do when an attempt ended: finish, try again, go on elsewhere, or give up. Pure.

Rules (docs/resume.md): the caller's own mistake is final; nothing made yet means a fresh try, which
nobody sees; something made means going on from the last token on a twin replica, if the request and
the answer so far allow it; else an explicit error. Three budgets: tries before an answer begins, resumes
after it, and refusals of nodes that did not begin. Memory of what was said is bounded for each answer
and for all of them together; an answer that is not kept whole can no longer be continued.
"""

import sys
from array import array
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
RESUMES_MAX = 3
REFUSALS_MAX = 8
KEPT_TOKENS_MAX = 32_768
"""An answer longer than this is no longer kept for resuming."""

KEPT_BYTES_MAX = 256 * 1024 * 1024
TOKEN_BYTES = 8
PIECE_BYTES = 8
"""A reference in a list, beside the piece itself."""


@dataclass(slots=True)
class KeptMemory:
    """What all running answers of a process may keep together, in bytes."""

    bytes_max: int = KEPT_BYTES_MAX
    used_bytes: int = 0

    def take(self, size: int) -> bool:
        """Whether so much more may be kept; if so it is counted."""
        if self.used_bytes + size > self.bytes_max:
            return False
        self.used_bytes += size
        return True

    def give_back(self, size: int) -> None:
        self.used_bytes -= size


@dataclass(slots=True)
class AnswerSoFar:
    """The bookkeeping of one answer over all its attempts.

    ``tries`` and ``breaks`` count attempts that failed before and after something was made. ``sent`` whether
    the client has any byte of the answer (headers and comments do not count); ``opaque`` whether something
    that text alone cannot continue went out; ``token_ids`` is None once an id was missing; ``lost`` whether
    the answer is too long to be kept. Text is kept in pieces, so that a long answer costs no copying.
    """

    memory: KeptMemory = field(default_factory=KeptMemory)
    tries: int = 0
    breaks: int = 0
    refusals: int = 0
    sent: bool = False
    opaque: bool = False
    role_sent: bool = False
    lost: bool = False
    pieces: list[str] = field(default_factory=list)
    token_ids: "array[int] | None" = field(default_factory=lambda: array("q"))
    prompt_tokens: int = 0
    completion_tokens: int = 0
    kept_bytes: int = 0

    @property
    def begun(self) -> bool:
        """Whether there is something to go on from, or something that the client has seen."""
        return self.sent or bool(self.pieces)

    def keep(self, text: str, token_ids: list[int] | None) -> None:
        """Add a piece; beyond the limits everything is dropped and the answer is marked ``lost``."""
        if self.lost:
            return
        size = sys.getsizeof(text) + PIECE_BYTES + TOKEN_BYTES * len(token_ids or ())
        if self.completion_tokens > KEPT_TOKENS_MAX or not self.memory.take(size):
            self.release()
            self.lost = True
            return
        self.kept_bytes += size
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
            token_ids=self.token_ids.tolist() if self.token_ids else None,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            role_sent=self.role_sent,
        )

    def release(self) -> None:
        """Give the memory back: the answer is over, or will not be continued."""
        self.memory.give_back(self.kept_bytes)
        self.kept_bytes = 0
        self.pieces.clear()
        self.token_ids = None

    def forget(self) -> None:
        """Start over: what nobody has seen is dropped; the role, once told, stays told."""
        self.release()
        self.opaque = self.lost = False
        self.token_ids = array("q")
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


@dataclass(frozen=True, slots=True)
class Budgets:
    """How often: tries until an answer begins, and times that it goes on elsewhere after that."""

    attempts_max: int = ATTEMPTS_MAX
    resumes_max: int = RESUMES_MAX


def next_step(
    so_far: AnswerSoFar,
    failure: PanalError,
    *,
    resumable: bool,
    twin: str,
    budgets: Budgets = Budgets(),
) -> NextStep:
    """Decide after ``failure`` of an attempt, counted already, on a replica with this ``twin`` mark."""
    if isinstance(failure, EngineRefused) or not isinstance(failure, NodeError):
        return GiveUp(told(so_far, failure))
    if _spent(so_far, failure, budgets):
        return GiveUp(told(so_far, failure))
    if can_go_on(so_far, resumable=resumable, twin=twin) and so_far.begun:
        return GoOn()
    return GiveUp(told(so_far, failure)) if so_far.sent else TryAgain()


def can_go_on(so_far: AnswerSoFar, *, resumable: bool, twin: str) -> bool:
    """Whether the answer, as it stands, could be continued on a twin."""
    return resumable and bool(twin) and not so_far.opaque and not so_far.lost


def _spent(so_far: AnswerSoFar, failure: PanalError, budgets: Budgets) -> bool:
    if isinstance(failure, NodeRefused):
        return so_far.refusals >= REFUSALS_MAX
    if so_far.begun:
        return so_far.breaks > budgets.resumes_max
    return so_far.tries >= budgets.attempts_max


def told(so_far: AnswerSoFar, failure: PanalError) -> PanalError:
    """After the first byte, the client hears that its answer was cut, and why."""
    if not so_far.sent or not isinstance(failure, NodeError):
        return failure
    return AnswerCut(f"The answer broke off and could not be continued: {failure.message}")
