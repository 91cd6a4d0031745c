"""The path of one request: admit, route, attempt, go on elsewhere if need be, meter.

booking = where it runs     -> dispatch/bookings.py, scheduling/routing.py
attempt = one try           -> bus, node; frames arrive in dispatch/answer.py
step    = what next         -> scheduling/continuation.py
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from panal.bus.seam import GatewayBus
from panal.core.clock import Clock
from panal.core.errors import (
    BusError,
    CapacityError,
    FrameGap,
    NodeAbsent,
    NodeLost,
    NodeRefused,
    PanalError,
)
from panal.core.ids import NodeKey, ReplicaId, TenantId
from panal.core.requests import InferenceRequest
from panal.dispatch.answer import LEAVES, Answer, Attempt
from panal.dispatch.bookings import Bookings
from panal.dispatch.hand_over import HandOvers, name_of
from panal.dispatch.limiter import Limiter
from panal.dispatch.limits import Limits
from panal.dispatch.outcome import (
    AttemptLog,
    Finished,
    distrusts,
    outcome_of,
    resumes_of,
    speakers_of,
)
from panal.dispatch.presence import Presence
from panal.dispatch.run_message import run_message
from panal.dispatch.sink import Sink
from panal.policy.access import authorise
from panal.protocol.messages import Acknowledge, Cancel, Frame, Seam
from panal.scheduling.continuation import (
    GiveUp,
    GoOn,
    KeptMemory,
    TryAgain,
    can_go_on,
    next_step,
    told,
)
from panal.scheduling.replicas import INHIBITED_S, Need, ReplicaView
from panal.scheduling.routing import Choice

OUTPUT_TOKENS_DEFAULT = 200
"""Expected answer length where the request names no limit."""


class Observer(Protocol):
    """Metering, logs and metrics hear of a request here."""

    def started(self, request: InferenceRequest) -> Callable[[float, int], None]:
        """Gives what is called with each gap between events: seconds, and tokens of the event."""
        ...

    def ended(self, finished: Finished) -> None:
        """Record the request, before its last bytes leave. Raises StoreError if that is impossible."""
        ...


class Traces(Protocol):
    def traceparent(self, request: InferenceRequest, attempt: str, /) -> str:
        """What an attempt carries to its node, so that the node's spans hang below the attempt's."""
        ...


class Dispatcher:
    """Runs requests. One per gateway process; everything happens in its event loop."""

    def __init__(
        self,
        bus: GatewayBus,
        bookings: Bookings,
        clock: Clock,
        observer: Observer,
        limits: Limits,
        allowed: Callable[[InferenceRequest, ReplicaView], bool],
        cache_salt: Callable[[TenantId], str],
        limiter: Limiter | None = None,
        traces: Traces | None = None,
        memory: KeptMemory | None = None,
    ) -> None:
        """``cache_salt``: a secret word of each tenant, so that no prefix cache is shared between tenants.

        ``limiter`` None: nobody is limited. ``traces`` None: nodes get the client's traceparent.
        ``memory``: what all running answers may keep together.
        """
        self._bus = bus
        self._bookings = bookings
        self._clock = clock
        self._observer = observer
        self._limits = limits
        self._allowed = allowed
        self._cache_salt = cache_salt
        self._limiter = limiter
        self._presence = Presence(bus, clock)
        self._traces = traces
        self.running: dict[str, Answer] = {}
        """Answers by the name of their current attempt."""
        self.waiting: dict[str, Answer] = {}
        """Answers that wait for a replica, by request id."""
        self.hand_overs = HandOvers(bookings, clock, limits, self._book, self._run, self._cancel)
        self._memory = memory if memory is not None else KeptMemory()

    async def answer(self, request: InferenceRequest, sink: Sink) -> bytes:
        """Answer a request: streamed data goes to ``sink`` as it comes, the last bytes are returned.

        Raises a PanalError where there is no answer or only a part of one; exactly one outcome is
        recorded in any case, before this returns.
        """
        begun_s = self._clock.monotonic_seconds()
        observe_gap = self._observer.started(request)
        answer = Answer(request, sink, self._clock, self._acknowledge, observe_gap, self._memory)
        sink.on_gone = answer.on_gone
        sink.on_drained = answer.on_drained
        queued_s, error, reservation = 0.0, None, None
        try:
            known = bool(request.serves) or self._bookings.knows_model(request.model)
            authorise(request.principal, request.model, known=known)
            if self._limiter is not None:
                reservation = await self._limiter.reserve(request)
            queued_s = await self._attempts(answer)
        except PanalError as failure:
            error = failure
            raise
        except BaseException:
            error = PanalError("The gateway stopped before the end of the answer.")
            raise
        finally:
            sink.on_gone = sink.on_drained = None
            answer.so_far.release()
            sink.resumes = resumes_of(answer.logs)
            finished = self._finished(answer, error, begun_s, queued_s)
            if self._limiter is not None and reservation is not None:
                self._limiter.settle(reservation, finished)
            self._observer.ended(finished)
        return answer.tail

    def on_frames(self, key: NodeKey, frames: Sequence[Frame]) -> None:
        """Frames from the bus. They count only from the node that the attempt was given to."""
        for frame in frames:
            answer = self.running.get(frame.attempt)
            if answer is not None and answer.attempt is not None and answer.attempt.choice.replica.key == key:
                answer.on_frame(frame)
            elif answer is None:
                self.hand_overs.on_frame(key, frame)

    def on_absent(self, key: NodeKey, *, settling: bool) -> None:
        """The bus says that nobody hears this node: its attempts go elsewhere, without waiting for silence.

        What the node has not answered yet it may never have heard: that is as good as a refusal. An answer
        that was begun moves only if another replica takes it now, and not while the fleet is ``settling``:
        after a break of the bus all come back one by one, and go on.
        """
        for answer in list(self.running.values()):
            attempt = answer.attempt
            if attempt is None or attempt.choice.replica.key != key:
                continue
            name = attempt.choice.replica.node_name
            if attempt.progress_s is None:
                answer.end(NodeAbsent(f"The node {name} is not on the bus."))
            elif not settling and self.could_move(answer, attempt):
                answer.end(NodeLost(f"The node {name} is not on the bus any more."))
        self.hand_overs.on_absent(key)

    def probe(self, keys: Iterable[NodeKey]) -> None:
        """Ask the bus for nodes that should have said something."""
        for key in keys:
            self._bus.probe(key)

    def tell_presence(self) -> None:
        """Nodes hear each second that this gateway lives. Call it often."""
        running = [answer.attempt for answer in self.running.values() if answer.attempt is not None]
        followed = [(attempt.name, attempt.choice) for attempt in running]
        self._presence.tell([*followed, *self.hand_overs.warming()])

    def could_move(self, answer: Answer, attempt: Attempt) -> bool:
        """Whether another replica would take the answer over this instant, and the client see no error."""
        excluded = answer.excluded | {attempt.choice.replica.replica_id}
        need = replace(self._need(answer.request), excluded=excluded)
        if answer.so_far.begun:
            twin = self._twin(answer, attempt.choice)
            if can_go_on(answer.so_far, resumable=answer.request.resumable, twin=twin):
                need = replace(need, twin=twin)
            elif answer.so_far.sent:
                return False
        return self._bookings.free_for(need)

    async def _attempts(self, answer: Answer) -> float:
        """Try until there is an answer. Gives the seconds spent in the queue before the first try."""
        need = self._need(answer.request)
        queued_from_s = self._clock.monotonic_seconds()
        choice = await self._book(answer, need)
        queued_s = self._clock.monotonic_seconds() - queued_from_s
        goes_on_after = ""
        while True:
            failure, prepared = await self._attempt(answer, choice, need, goes_on_after)
            if failure is None:
                return queued_s
            try:
                need = self._next_need(answer, choice, need, failure)
            except BaseException:
                self.hand_overs.give_back(prepared)
                raise
            if not (goes_on_after and isinstance(failure, NodeRefused)):
                goes_on_after = failure.code if answer.so_far.begun else ""
            try:
                choice = prepared or await self._book(answer, need, patience_s=self._limits.recovery_s_max)
            except CapacityError as nowhere:
                raise told(answer.so_far, failure) from nowhere

    def _next_need(self, answer: Answer, choice: Choice, need: Need, failure: PanalError) -> Need:
        """What the next attempt needs of a replica. Raises where there shall be none."""
        if answer.interruption is not None:
            raise answer.interruption
        twin = self._twin(answer, choice)
        answer.excluded |= _excluded(failure, choice)
        need = replace(need, excluded=answer.excluded)
        step = next_step(
            answer.so_far,
            failure,
            resumable=answer.request.resumable,
            twin=twin,
            budgets=self._limits.budgets,
        )
        match step:
            case GiveUp(error):
                raise error
            case TryAgain():
                answer.start_over()
                return replace(need, twin=None)
            case GoOn():
                return replace(need, twin=twin)

    def _twin(self, answer: Answer, choice: Choice) -> str:
        """The mark of those that could continue what this replica says; empty where nobody could."""
        return choice.replica.twin if choice.replica.can_continue(tools=answer.request.tools) else ""

    async def _book(self, answer: Answer, need: Need, patience_s: float = 0.0) -> Choice:
        request = answer.request
        try:
            return await self._bookings.book(
                need,
                request.principal.tenant_id,
                request.deadline_monotonic_s,
                partial(self._waits, answer),
                patience_s=patience_s,
            )
        finally:
            self.waiting.pop(request.request_id, None)

    def _waits(self, answer: Answer, break_wait: Callable[[PanalError], None]) -> None:
        self.waiting[answer.request.request_id] = answer
        answer.while_waiting(break_wait)

    async def _attempt(
        self, answer: Answer, choice: Choice, need: Need, goes_on_after: str
    ) -> tuple[PanalError | None, Choice | None]:
        """One attempt, from booking to release: its failure, None where the answer is complete.

        After a hand-over the replica that is to go on is booked already, and comes with it.
        """
        now_s = self._clock.monotonic_seconds()
        log = AttemptLog(len(answer.logs) + 1, choice.replica.node_id, choice.replica.node_name)
        log.opened_monotonic_s, log.goes_on_after = now_s, goes_on_after
        attempt = Attempt(name_of(answer), choice, log, now_s)
        answer.open(attempt)
        self.running[attempt.name] = answer
        failure: PanalError | None = PanalError("The gateway stopped.")
        prepared: Choice | None = None
        try:
            self._run(answer, attempt.name, choice)
            failure = await answer.ending(attempt, or_leaving=True)
            if failure is LEAVES:
                twin = self._twin(answer, choice)
                failure, prepared = await self.hand_overs.hand_over(answer, attempt, need, twin)
        except BusError as error:
            failure = FrameGap(error.message)
        finally:
            del self.running[attempt.name]
            if failure is not None:
                self._cancel(attempt.name, choice, log, failure)
            answer.close(attempt, failure)
            self._bookings.release(choice)
        if distrusts(failure):
            choice.own.inhibited_until_s = self._clock.monotonic_seconds() + INHIBITED_S
        _count(answer, failure)
        return failure, prepared

    def _run(self, answer: Answer, name: str, choice: Choice) -> None:
        request = answer.request
        seam = None
        if request.show_nodes:
            seam = Seam(resumes=resumes_of(answer.logs), nodes=speakers_of(answer.logs))
        run, parts = run_message(
            request,
            choice.replica,
            name,
            self._bus.gateway,
            self._limits,
            deadline_s=request.deadline_monotonic_s - self._clock.monotonic_seconds(),
            cache_salt=self._cache_salt(request.principal.tenant_id),
            traceparent=self._traces.traceparent(request, name) if self._traces else request.traceparent,
            emitted=answer.so_far.emitted(),
            seam=seam,
        )
        self._bus.run(choice.replica.key, run, parts)
        self._presence.opened(choice)

    def _cancel(self, name: str, choice: Choice, log: AttemptLog, failure: PanalError) -> None:
        try:
            self._bus.cancel(choice.replica.key, Cancel(attempt=name, reason=failure.code))
        except BusError:
            # The agent stops by itself when its gateway is not heard of any more.
            log.cause = "bus_unavailable"

    def _acknowledge(self, attempt: Attempt) -> None:
        try:
            self._bus.acknowledge(
                attempt.choice.replica.key,
                Acknowledge(attempt=attempt.name, data_bytes=attempt.acknowledged),
            )
        except BusError as error:
            answer = self.running.get(attempt.name)
            if answer is not None:
                answer.end(NodeLost(error.message))

    def _need(self, request: InferenceRequest) -> Need:
        return Need(
            model=request.own_model,
            route=request.route,
            prompt_tokens=request.prompt_tokens_estimate,
            output_tokens=min(request.max_tokens or OUTPUT_TOKENS_DEFAULT, OUTPUT_TOKENS_DEFAULT),
            allowed=lambda replica: self._allowed(request, replica),
            resumable=request.resumable,
            tools=request.tools,
            called=request.model,
        )

    def _finished(
        self, answer: Answer, error: PanalError | None, begun_s: float, queued_s: float
    ) -> Finished:
        first_s = answer.first_data_s
        return Finished(
            request=answer.request,
            outcome=outcome_of(error, sent=answer.so_far.sent),
            error=error,
            shown=answer.shown_usage(),
            attempts=answer.logs,
            lost=answer.so_far.lost,
            queued_s=queued_s,
            first_token_s=first_s - begun_s if first_s is not None else None,
            total_s=self._clock.monotonic_seconds() - begun_s,
        )


def _excluded(failure: PanalError, choice: Choice) -> frozenset[ReplicaId]:
    """A replica that failed is not tried again; but what the bus lost says nothing of the replica, and an
    absent node may only be changing its connection."""
    excused = isinstance(failure, FrameGap | NodeAbsent)
    return frozenset() if excused else frozenset({choice.replica.replica_id})


def _count(answer: Answer, failure: PanalError | None) -> None:
    """Spend the budgets: see scheduling/continuation.py."""
    if failure is None:
        return
    if isinstance(failure, NodeRefused):
        answer.so_far.refusals += 1
    elif answer.so_far.begun:
        answer.so_far.breaks += 1
    else:
        answer.so_far.tries += 1
