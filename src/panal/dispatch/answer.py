"""One client's answer over all its attempts: relays bytes as they come, keeps the books, fences.

Frames go from the bus callback straight to the client's socket. The request's coroutine sleeps until
an attempt ends; no task wakes up for a chunk (data_path_trial: the largest single gain).
"""

import asyncio
from collections.abc import Callable

from panal.core.clock import Clock
from panal.core.errors import (
    AttemptTimeout,
    ClientGone,
    DeadlineExceeded,
    EngineFailed,
    EngineRefused,
    FrameGap,
    NodeLeaving,
    NodeRefused,
    PanalError,
)
from panal.core.ids import ReplicaId
from panal.core.requests import InferenceRequest, Usage
from panal.dispatch.outcome import AttemptLog, attempt_outcome_of
from panal.dispatch.sink import Sink
from panal.protocol.messages import Event, Frame, TokenUsage, WireError
from panal.scheduling.continuation import AnswerSoFar, KeptMemory
from panal.scheduling.routing import Choice

ACKNOWLEDGE_EACH_BYTES = 64 * 1024
WHOLE_BYTES_MAX = 64 * 1024 * 1024
"""Largest answer to a client that does not stream."""


class Attempt:
    """One try on one replica, as the gateway follows it."""

    __slots__ = (
        "acknowledged",
        "choice",
        "data_bytes",
        "ended",
        "failure",
        "leaving",
        "log",
        "name",
        "next_number",
        "opened_s",
        "progress_s",
    )

    def __init__(self, name: str, choice: Choice, log: AttemptLog, now_s: float) -> None:
        self.name = name
        self.choice = choice
        self.log = log
        self.next_number = 0
        self.data_bytes = 0
        self.acknowledged = 0
        self.opened_s = now_s
        self.progress_s: float | None = None
        """When the last event arrived; None before the first."""
        self.leaving = False
        """The node said that it leaves; it may still speak for a moment."""
        self.ended = False
        self.failure: PanalError | None = None
        """Why it ended; None of an attempt that ended is a complete answer."""


class Answer:
    """The gateway's side of one answer. ``acknowledge(attempt)`` is called when the client has read."""

    def __init__(
        self,
        request: InferenceRequest,
        sink: Sink,
        clock: Clock,
        acknowledge: Callable[[Attempt], None],
        observe_gap: Callable[[float, int], None],
        memory: KeptMemory,
    ) -> None:
        self.request = request
        self.sink = sink
        self.so_far = AnswerSoFar(memory)
        self.attempt: Attempt | None = None
        self.logs: list[AttemptLog] = []
        self.excluded: frozenset[ReplicaId] = frozenset()
        """Replicas that failed this request."""
        self.usage: TokenUsage | None = None
        """The engine's count of the whole answer; None until it is complete."""
        self.tail = b""
        """The last bytes of the answer: held until the usage record is written."""
        self.first_data_s: float | None = None
        self.opened_s = clock.monotonic_seconds()
        self.written_s: float | None = None
        self._whole: list[bytes] = []
        self._cached_tokens = 0
        self._clock = clock
        self._acknowledge = acknowledge
        self._observe_gap = observe_gap
        self._waiter: asyncio.Future[None] | None = None
        self._interrupted: PanalError | None = None
        self._break_wait: Callable[[PanalError], None] = _no_wait

    # --- the path's side --------------------------------------------------------------------------

    def open(self, attempt: Attempt) -> None:
        """From now on only frames of this attempt count."""
        self.attempt = attempt
        self.logs.append(attempt.log)

    async def ending(self, attempt: Attempt, *, or_leaving: bool = False) -> PanalError | None:
        """Wait until the attempt finished (None) or failed, or the client left.

        With ``or_leaving`` also until its node says that it leaves: then the attempt is not over yet.
        """
        while not attempt.ended:
            if self._interrupted is not None:
                return self._interrupted
            if or_leaving and attempt.leaving:
                return LEAVES
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return attempt.failure

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self, attempt: Attempt, failure: PanalError | None) -> None:
        """Fence the attempt: what still comes of it is dropped."""
        attempt.log.duration_s = self._clock.monotonic_seconds() - attempt.opened_s
        attempt.log.outcome = attempt_outcome_of(failure)
        attempt.log.cause = failure.code if failure is not None else ""
        self.attempt = None

    def start_over(self) -> None:
        """Nobody has seen what was made so far: drop it."""
        self.so_far.forget()
        for log in self.logs:
            log.useful = False

    def end(self, failure: PanalError | None) -> None:
        """The current attempt is over; the first word counts."""
        attempt = self.attempt
        if attempt is not None and not attempt.ended:
            attempt.ended = True
            attempt.failure = failure
            self._wake()

    def interrupt(self, error: PanalError) -> None:
        """Something outside the attempt ends the request: the client left, or its time is up."""
        if self._interrupted is None:
            self._interrupted = error
            self.end(error)
            self._wake()
            self._break_wait(error)

    @property
    def interruption(self) -> PanalError | None:
        """What ended the request from outside, if anything did."""
        return self._interrupted

    def while_waiting(self, break_wait: Callable[[PanalError], None]) -> None:
        """An interruption from now on also breaks this wait off; one that was before does so at once."""
        self._break_wait = break_wait
        if self._interrupted is not None:
            break_wait(self._interrupted)

    def shown_usage(self) -> Usage:
        """Tokens as the client sees them: the engine's word on a complete answer, else what was counted and
        sent, marked so. Nothing sent means nothing used."""
        if self.usage is not None:
            return Usage(
                self.usage.prompt_tokens,
                self.usage.completion_tokens,
                self.usage.cached_tokens,
                self.usage.estimated,
            )
        if not self.so_far.sent or self.so_far.completion_tokens == 0:
            return Usage()
        prompt = self.so_far.prompt_tokens or self.request.prompt_tokens_estimate
        return Usage(prompt, self.so_far.completion_tokens, self._cached_tokens, estimated=True)

    # --- the bus's side ---------------------------------------------------------------------------

    def on_frame(self, frame: Frame) -> None:
        """Take a frame of the current attempt. A gap in numbers ends it."""
        attempt = self.attempt
        if attempt is None or frame.attempt != attempt.name:
            return
        if frame.number != attempt.next_number:
            self.end(FrameGap(f"Frame {attempt.next_number} of the attempt is missing."))
            return
        attempt.next_number += 1
        now_s = self._clock.monotonic_seconds()
        for event in frame.events:
            if attempt.ended:
                return
            self._take(attempt, event, now_s)

    def on_gone(self) -> None:
        """The client left."""
        self.interrupt(ClientGone("The client left before the end of its answer."))

    def on_drained(self) -> None:
        """The client's buffer has room again."""
        if self.attempt is not None:
            self._account(self.attempt)

    def _take(self, attempt: Attempt, event: Event, now_s: float) -> None:
        self._keep_books(attempt, event, now_s)
        attempt.progress_s = now_s
        if event.data:
            attempt.data_bytes += len(event.data)
            if not self.request.stream:
                self._collect(attempt, event.data, last=event.finish is not None)
            elif event.finish is not None:
                self.tail = self._shown(attempt, event.data)
            else:
                self._relay(attempt, event, now_s)
        if event.error is not None:
            self.end(failure_of(event.error))
        elif event.finish is not None:
            self.end(None)
        elif event.leaving:
            attempt.leaving = True
            self._wake()
        else:
            self._account(attempt)

    def _keep_books(self, attempt: Attempt, event: Event, now_s: float) -> None:
        so_far = self.so_far
        if event.text:
            so_far.keep(event.text, event.token_ids)
        if event.tokens:
            so_far.completion_tokens += event.tokens
            attempt.log.tokens += event.tokens
            if attempt.progress_s is not None:
                self._observe_gap(now_s - attempt.progress_s, event.tokens)
        if event.role:
            so_far.role_sent = True
        if event.opaque:
            so_far.opaque = True
        if event.usage is not None:
            self._cached_tokens = event.usage.cached_tokens
            if event.finish is not None:
                self.usage = event.usage
            so_far.prompt_tokens = event.usage.prompt_tokens
            attempt.log.prompt_tokens = event.usage.prompt_tokens

    def _collect(self, attempt: Attempt, data: bytes, *, last: bool) -> None:
        """A whole answer is kept until all of it is there; a large one comes in pieces."""
        if attempt.data_bytes > WHOLE_BYTES_MAX:
            self.end(EngineFailed(f"The answer is larger than {WHOLE_BYTES_MAX} bytes."))
            return
        if attempt.data_bytes == len(data):
            self._whole.clear()
        self._whole.append(data)
        if last:
            self.tail = b"".join(self._whole)

    def _relay(self, attempt: Attempt, event: Event, now_s: float) -> None:
        if event.text or event.opaque:
            self.so_far.sent = True
            if self.first_data_s is None:
                self.first_data_s = now_s
        self.written_s = now_s
        self.sink.write(self._shown(attempt, event.data))

    def _shown(self, attempt: Attempt, data: bytes) -> bytes:
        """The bytes of an event; before an attempt's first ones, who speaks, for those who asked."""
        if self.request.show_nodes and self.request.stream and attempt.data_bytes == len(data):
            return node_comment(attempt.log) + data
        return data

    def _account(self, attempt: Attempt) -> None:
        """Acknowledge what the client's socket has taken."""
        if self.sink.full:
            return
        if attempt.data_bytes - attempt.acknowledged >= ACKNOWLEDGE_EACH_BYTES:
            attempt.acknowledged = attempt.data_bytes
            self._acknowledge(attempt)


LEAVES = NodeLeaving("The node gives the machine back to its owner.")


def _no_wait(error: PanalError) -> None:
    """Nothing waits, so nothing is broken off by ``error``."""
    del error


def node_comment(log: AttemptLog) -> bytes:
    """An SSE comment for people who asked to see who speaks; clients ignore it."""
    return f": node {log.node_name} attempt {log.number}\n".encode()


def failure_of(error: WireError) -> PanalError:
    """What an agent says went wrong, as an error of the tree."""
    if error.kind == "caller":
        # The number is a node's word: nothing but a client's mistake may come of it.
        status = error.status if 400 <= error.status <= 499 else 400
        return EngineRefused(error.message, status=status, body=error.body)
    if error.kind == "refused":
        return NodeRefused(error.message)
    if error.kind == "leaving":
        return NodeLeaving(error.message)
    if error.kind == "timeout" and error.code == "total":
        return DeadlineExceeded()
    if error.kind == "timeout":
        return AttemptTimeout(error.code or "unnamed", None)
    return EngineFailed(error.message)
