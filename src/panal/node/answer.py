"""The writer of an answer: an engine's deltas become final client bytes and the gateway's bookkeeping.

Pure: no clock of its own, no waiting. One writer serves one attempt.
"""

from collections import deque

from panal.core.requests import Route
from panal.node.answer_format import AnswerFormat, StreamFormat, WholeFormat
from panal.node.answer_plan import AnswerPlan
from panal.node.engines.engine import Delta, Json
from panal.node.stops import StopMatcher
from panal.node.usage import UsageTally
from panal.protocol.messages import Event, WireError

BOOKKEEPING_TOKENS = 16
BOOKKEEPING_S = 0.5
BROKEN_FINISHES = frozenset({"abort", "error"})
"""Finish reasons with which an engine says that it gave the answer up: no answer ends like that."""


class AnswerWriter:
    """Feed it every delta with ``write``, then call ``end`` once.

    ``done`` turns True when the agent itself ended the answer (a stop string): stop the engine then.
    """

    def __init__(self, plan: AnswerPlan) -> None:
        self._plan = plan
        self._format: AnswerFormat = StreamFormat(plan) if plan.stream else WholeFormat(plan)
        self._gate = StopGate(plan) if plan.stops else None
        self._usage = UsageTally(plan.emitted, plan.prompt_characters)
        self._carry = _Carry()
        self._held: list[bytes] | None = [] if plan.hold else None
        self._held_bytes = 0
        self._outgrown = False
        self._role_told = plan.emitted is not None and plan.emitted.role_sent
        self._prompt_told = False
        self._last_event_s: float | None = None
        self._open: set[int] = set()
        self._tail = b""
        """What finishes the answer, held until it is whole: a cut before that must not leave two finishes."""
        self._finish: str | None = None
        self.done = False

    @property
    def usage(self) -> UsageTally:
        return self._usage

    @property
    def complete(self) -> bool:
        """Whether every choice that began has ended: only the engine's usage may still come."""
        return self._finish is not None and not self._open

    def write(self, delta: Delta, now_s: float) -> Event | None:
        """One step at monotonic time ``now_s``. None while there is nothing to tell.

        Raises EngineFailed when a whole answer grows too large.
        """
        self._usage.add(delta)
        self._note_finish(delta)
        pieces = (delta,) if self._gate is None else self._gate.passed(delta)
        data = b""
        for piece in pieces:
            if piece.chunk is not None:
                data += self._format.chunk(piece.chunk)
            elif piece.plain and piece.text:
                data += self._format.text(piece.text)
            self._carry.add(piece)
        if self._gate is not None and self._gate.hit:
            data += self._format.finish("stop")
            self._finish = "stop"
            self._open.clear()
            self.done = True
        elif delta.chunk is None and delta.finish:
            data += self._format.finish(delta.finish)
        return self._event(data, now_s)

    def _note_finish(self, delta: Delta) -> None:
        if delta.finish:
            self._finish = delta.finish
        if delta.chunk is None:
            if delta.plain:
                self._open.add(0)
            return
        for choice in delta.chunk["choices"]:
            index = choice.get("index", 0)
            if choice.get("finish_reason"):
                self._open.discard(index)
                self._finish = self._finish or choice["finish_reason"]
            else:
                self._open.add(index)

    def _event(self, data: bytes, now_s: float) -> Event | None:
        if self._last_event_s is None:
            self._last_event_s = now_s
        if self._held is None and self._plan.tools_whole and self._carry.opaque and not self._outgrown:
            self._held = []
        if self._held is not None:
            return self._hold(data, now_s)
        if self._finish is not None and not self._open:
            self._tail += data
            return None
        pause_over = now_s - self._last_event_s >= BOOKKEEPING_S
        if not data and not (self._carry.worth_telling and (self._carry.tokens_ready or pause_over)):
            return None
        self._last_event_s = now_s
        event = self._carry.event(data)
        if self._plan.route is Route.CHAT and self._format.role_sent and not self._role_told:
            self._role_told = event.role = self._plan.stream
        if not self._prompt_told and self._usage.prompt_known:
            self._prompt_told = True
            event.usage = self._usage.total()
        return event

    def _hold(self, data: bytes, now_s: float) -> Event | None:
        """Keep the bytes back. An event without bytes now and then shows that the attempt lives.

        Where nothing was sent it tells the count of tokens, for the node's record; behind text that was sent
        a count would not be that text's.
        """
        assert self._held is not None and self._last_event_s is not None
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > self._plan.hold_bytes_max:
            everything = b"".join(self._held)
            self._held = None
            self._outgrown = True
            event = self._carry.event(everything)
            event.opaque = True
            return event
        if now_s - self._last_event_s < BOOKKEEPING_S:
            return None
        self._last_event_s = now_s
        return Event(tokens=self._carry.counted() if self._plan.hold else 0)

    def end(self) -> Event:
        """The engine's stream is over: the last event, which is an error if the answer is not complete."""
        if not self.complete:
            return Event(
                error=WireError(
                    kind="failed",
                    code="engine_failed",
                    message="the engine broke off before its answer was complete",
                )
            )
        if self._finish in BROKEN_FINISHES:
            message = f"the engine ended its answer with '{self._finish}'"
            return Event(error=WireError(kind="failed", code="engine_failed", message=message))
        usage = self._usage.total()
        data = b"".join(self._held or ()) + self._tail + self._format.end(usage, self._raw_usage())
        event = self._carry.event(data, last=True)
        event.finish = self._finish
        event.usage = usage
        return event

    def _raw_usage(self) -> Json:
        """The engine's usage, and for those who asked what panal has to say of the answer's way."""
        seam = self._plan.seam
        if seam is None:
            return self._usage.raw
        return {**self._usage.raw, "panal": {"resumes": seam.resumes, "nodes": seam.nodes}}


class StopGate:
    """Holds deltas back while their text may still become a stop string; lets whole deltas pass."""

    def __init__(self, plan: AnswerPlan) -> None:
        self._route = plan.route
        self._matcher = StopMatcher(plan.stops, plan.emitted.text if plan.emitted is not None else "")
        self._held: deque[Delta] = deque()
        self._allowance = 0
        self.hit = False

    def passed(self, delta: Delta) -> list[Delta]:
        """What may go out after this delta. ``hit`` is True once a stop string was found."""
        self._held.append(delta)
        if delta.text:
            verdict = self._matcher.feed(delta.text)
            self._allowance, self.hit = verdict.safe, verdict.hit
        if delta.finish and not self.hit:
            self._allowance = len(self._matcher.held)
        released: list[Delta] = []
        while self._held and len(self._held[0].text) <= self._allowance and not self._at_cut():
            released.append(self._pop())
        if self.hit:
            if self._held and self._allowance:
                released.append(_cut(self._held[0], self._route, self._allowance))
            self._held.clear()
        return released

    def _at_cut(self) -> bool:
        """Whether only what follows the stop string is left."""
        return self.hit and self._allowance == 0

    def _pop(self) -> Delta:
        delta = self._held.popleft()
        self._allowance -= len(delta.text)
        self._matcher.release(len(delta.text))
        return delta


def _cut(delta: Delta, route: Route, characters: int) -> Delta:
    """The first characters of a delta, without a finish."""
    text = delta.text[:characters]
    chunk: Json | None = None
    if delta.chunk is not None:
        choice = {**delta.chunk["choices"][0], "finish_reason": None}
        if route is Route.CHAT:
            choice["delta"] = {**choice["delta"], "content": text}
        else:
            choice["text"] = text
        chunk = {**delta.chunk, "choices": [choice]}
    return Delta(chunk=chunk, text=text, tokens=delta.tokens, plain=delta.plain)


class _Carry:
    """Bookkeeping that waits for the next event. Ids go out only with the text that they end."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._ids: list[int] = []
        self._ids_known = True
        self._tokens = 0
        self._waiting_ids: list[int] = []
        self._waiting_tokens = 0
        self._opaque = False

    def add(self, delta: Delta) -> None:
        self._opaque = self._opaque or delta.opaque
        if delta.token_ids is not None:
            self._waiting_ids += delta.token_ids
        elif delta.tokens:
            self._ids_known = False
        self._waiting_tokens += delta.tokens
        if delta.text or delta.opaque:
            self._text.append(delta.text)
            self._ids += self._waiting_ids
            self._tokens += self._waiting_tokens
            self._waiting_ids = []
            self._waiting_tokens = 0

    @property
    def opaque(self) -> bool:
        """Whether something waits that text alone cannot continue."""
        return self._opaque

    @property
    def worth_telling(self) -> bool:
        return bool(self._text) or self._opaque

    @property
    def tokens_ready(self) -> bool:
        return self._tokens >= BOOKKEEPING_TOKENS

    def counted(self) -> int:
        """Take the number of tokens alone: they were made, whatever becomes of their text."""
        tokens, self._tokens = self._tokens, 0
        return tokens

    def event(self, data: bytes, *, last: bool = False) -> Event:
        """An event with all that waits; ``last`` also takes tokens that no text follows."""
        if last:
            self._ids += self._waiting_ids
            self._tokens += self._waiting_tokens
        text = "".join(self._text)
        event = Event(
            data=data,
            text=text,
            token_ids=self._ids if self._ids_known and (text or self._ids) else None,
            tokens=self._tokens,
            opaque=self._opaque,
        )
        self._text = []
        self._ids = []
        self._tokens = 0
        self._opaque = False
        return event
