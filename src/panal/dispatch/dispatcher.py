"""The path of one request: admit, route, attempt, go on elsewhere if need be, meter.

booking = where it runs     -> dispatch/bookings.py, scheduling/routing.py
attempt = one try           -> bus, node; frames arrive in dispatch/answer.py
step    = what next         -> scheduling/continuation.py
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from panal.bus.seam import GatewayBus
from panal.core.clock import Clock
from panal.core.errors import (
    AttemptTimeout,
    BusError,
    CapacityError,
    EngineFailed,
    FrameGap,
    NodeAbsent,
    NodeLost,
    NodeRefused,
    PanalError,
)
from panal.core.ids import NodeKey, ReplicaId, TenantId
from panal.core.requests import InferenceRequest
from panal.dispatch.answer import Answer, Attempt
from panal.dispatch.bookings import Bookings
from panal.dispatch.limiter import Limiter
from panal.dispatch.outcome import AttemptLog, Finished, outcome_of
from panal.dispatch.presence import Presence
from panal.dispatch.sink import Sink
from panal.policy.access import authorise
from panal.protocol.messages import (
    MESSAGE_BYTES_MAX,
    Acknowledge,
    BodyPart,
    Cancel,
    Frame,
    RunAttempt,
)
from panal.scheduling.continuation import ATTEMPTS_MAX, GiveUp, GoOn, TryAgain, next_step, told
from panal.scheduling.replicas import INHIBITED_S, Need, ReplicaView
from panal.scheduling.routing import Choice

BODY_PART_BYTES = MESSAGE_BYTES_MAX - 32 * 1024
DISTRUSTED = (EngineFailed, NodeLost, FrameGap, AttemptTimeout)
"""Failures that say something of the replica; the caller's mistakes, refusals and departures do not (P25)."""

PREDICTED_FIRST_TOKEN = "predicted_first_token"  # noqa: S105 - a word, no secret
"""The limit of a try that is moved only because it is slower than predicted."""

OUTPUT_TOKENS_DEFAULT = 200
"""Expected answer length where the request names no limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of a request, in seconds."""

    first_token_s_max: float = 60.0
    between_tokens_s_max: float = 30.0
    recovery_s_max: float = 10.0
    """How long a broken answer waits for a replica that can take it over."""
    attempts_max: int = ATTEMPTS_MAX
    client_stall_s_max: float = 30.0
    """A client that reads nothing of its answer for so long is taken for gone."""


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
    ) -> None:
        """``cache_salt``: a secret word of each tenant, so that no prefix cache is shared between tenants.

        ``limiter`` None: nobody is limited. ``traces`` None: nodes get the client's traceparent.
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

    async def answer(self, request: InferenceRequest, sink: Sink) -> bytes:
        """Answer a request: streamed data goes to ``sink`` as it comes, the last bytes are returned.

        Raises a PanalError where there is no answer or only a part of one; exactly one outcome is
        recorded in any case, before this returns.
        """
        begun_s = self._clock.monotonic_seconds()
        observe_gap = self._observer.started(request)
        answer = Answer(request, sink, self._clock, self._acknowledge, observe_gap)
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

    def on_absent(self, key: NodeKey, *, steady: bool) -> None:
        """The bus says that nobody hears this node: its attempts go elsewhere, without waiting for silence.

        What the node has not answered yet it may never have heard: that is as good as a refusal. An answer
        that was begun moves only if another replica takes it now, and only while the gateway's own
        connection is ``steady``: after a break of the bus all come back one by one, and go on.
        """
        for answer in list(self.running.values()):
            attempt = answer.attempt
            if attempt is None or attempt.choice.replica.key != key:
                continue
            name = attempt.choice.replica.node_name
            if attempt.progress_s is None:
                answer.end(NodeAbsent(f"The node {name} is not on the bus."))
            elif steady and self.could_move(answer, attempt):
                answer.end(NodeLost(f"The node {name} is not on the bus any more."))

    def probe(self, keys: Iterable[NodeKey]) -> None:
        """Ask the bus for nodes that should have said something."""
        for key in keys:
            self._bus.probe(key)

    def tell_presence(self) -> None:
        """Nodes hear each second that this gateway lives. Call it often."""
        self._presence.tell(answer.attempt for answer in self.running.values() if answer.attempt is not None)

    def could_move(self, answer: Answer, attempt: Attempt) -> bool:
        """Whether another replica would take the request over this instant."""
        excluded = frozenset({attempt.choice.replica.replica_id})
        return self._bookings.free_for(replace(self._need(answer.request), excluded=excluded))

    async def _attempts(self, answer: Answer) -> float:
        """Try until there is an answer. Gives the seconds spent in the queue before the first try."""
        need = self._need(answer.request)
        queued_from_s = self._clock.monotonic_seconds()
        choice = await self._book(answer, need)
        queued_s = self._clock.monotonic_seconds() - queued_from_s
        while (failure := await self._attempt(answer, choice)) is not None:
            if answer.interruption is not None:
                raise answer.interruption
            excluded = need.excluded | _excluded(failure, choice)
            twin = choice.replica.twin if choice.replica.resume != "none" else ""
            step = next_step(
                answer.so_far,
                failure,
                resumable=answer.request.resumable,
                twin=twin,
                attempts_max=self._limits.attempts_max,
            )
            match step:
                case GiveUp(error):
                    raise error
                case TryAgain():
                    answer.start_over()
                    need = replace(need, excluded=excluded)
                case GoOn():
                    need = replace(need, excluded=excluded, twin=twin)
            try:
                choice = await self._book(answer, need, patience_s=self._limits.recovery_s_max)
            except CapacityError as nowhere:
                raise told(answer.so_far, failure) from nowhere
        return queued_s

    async def _book(self, answer: Answer, need: Need, patience_s: float = 0.0) -> Choice:
        request = answer.request
        return await self._bookings.book(
            need,
            request.principal.tenant_id,
            request.deadline_monotonic_s,
            answer.while_waiting,
            patience_s=patience_s,
        )

    async def _attempt(self, answer: Answer, choice: Choice) -> PanalError | None:
        """One attempt, from booking to release. None means the answer is complete."""
        name = f"{answer.request.request_id}.{len(answer.logs) + 1}"
        replica = choice.replica
        now_s = self._clock.monotonic_seconds()
        log = AttemptLog(len(answer.logs) + 1, replica.node_id, replica.node_name, opened_monotonic_s=now_s)
        attempt = Attempt(name, choice, log, now_s)
        answer.open(attempt)
        self.running[name] = answer
        failure: PanalError | None = PanalError("The gateway stopped.")
        try:
            self._run(answer, attempt)
            self._presence.opened(attempt)
            failure = await answer.ending()
        except BusError as error:
            failure = FrameGap(error.message)
        finally:
            del self.running[name]
            if failure is not None:
                self._cancel(attempt, failure)
            answer.close(attempt, failure)
            self._bookings.release(choice)
        if _distrusts(failure):
            choice.own.inhibited_until_s = self._clock.monotonic_seconds() + INHIBITED_S
        if isinstance(failure, NodeRefused):
            answer.so_far.refusals += 1
        else:
            answer.so_far.attempts += 1
        return failure

    def _run(self, answer: Answer, attempt: Attempt) -> None:
        request, replica = answer.request, attempt.choice.replica
        body, traces = request.body, self._traces
        pieces = [body[at : at + BODY_PART_BYTES] for at in range(0, len(body), BODY_PART_BYTES)] or [b""]
        self._bus.run(
            replica.key,
            RunAttempt(
                attempt=attempt.name,
                gateway=self._bus.gateway,
                instance=replica.instance,
                replica=replica.reported_id,
                response_id=request.response_id,
                created_utc_s=request.created_utc_s,
                route=request.route,
                model=request.model,
                stream=request.stream,
                include_usage=request.include_usage,
                tenant=request.principal.tenant_id,
                project=request.principal.project_id,
                principal=request.principal.principal_id,
                data_class=int(request.data_class),
                residency=sorted(request.residency),
                deadline_s=request.deadline_monotonic_s - self._clock.monotonic_seconds(),
                first_token_s_max=self._limits.first_token_s_max,
                between_tokens_s_max=self._limits.between_tokens_s_max,
                traceparent=request.traceparent
                if traces is None
                else traces.traceparent(request, attempt.name),
                cache_salt=self._cache_salt(request.principal.tenant_id),
                parts=len(pieces),
                body=pieces[0],
                emitted=answer.so_far.emitted(),
                hold=not request.resumable and replica.node_class.owned,
            ),
            [
                BodyPart(attempt=attempt.name, number=number, body=piece)
                for number, piece in enumerate(pieces[1:], start=2)
            ],
        )

    def _cancel(self, attempt: Attempt, failure: PanalError) -> None:
        try:
            self._bus.cancel(attempt.choice.replica.key, Cancel(attempt=attempt.name, reason=failure.code))
        except BusError:
            # The agent stops by itself when its gateway is not heard of any more.
            attempt.log.cause = "bus_unavailable"

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
            dropped=answer.dropped,
            queued_s=queued_s,
            first_token_s=first_s - begun_s if first_s is not None else None,
            total_s=self._clock.monotonic_seconds() - begun_s,
        )


def _excluded(failure: PanalError, choice: Choice) -> frozenset[ReplicaId]:
    """A replica that failed is not tried again; but what the bus lost says nothing of the replica, and an
    absent node may only be changing its connection."""
    return (
        frozenset() if isinstance(failure, FrameGap | NodeAbsent) else frozenset({choice.replica.replica_id})
    )


def _distrusts(failure: PanalError | None) -> bool:
    """Whether the replica is to be tried last for a moment; being slower than predicted is no fault."""
    slow = isinstance(failure, AttemptTimeout) and failure.limit == PREDICTED_FIRST_TOKEN
    return isinstance(failure, DISTRUSTED) and not slow
