"""Admission and routing joined: a request gets a free replica, waits for one in a fair bounded queue,
or is told why not. A booking is made in the same step as the choice, so two requests never take one slot."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from panal.core.clock import Clock
from panal.core.errors import (
    BadRequest,
    DeadlineExceeded,
    ModelResting,
    NotAllowed,
    PanalError,
    QueueDeadline,
)
from panal.core.ids import TenantId
from panal.dispatch.bus_sight import Sight
from panal.dispatch.fleet import Fleet
from panal.scheduling.replicas import Need
from panal.scheduling.routing import Candidate, Choice, Draw, choose, unfit
from panal.scheduling.waiting import WaitingRoom

RETRY_AFTER_S = 5
STALE_PATIENCE_S = 3.0
"""A new request waits so long for a node whose heartbeat is late: a busy machine is not a lost one."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A request in the queue."""

    need: Need
    tenant: TenantId
    future: asyncio.Future[Choice]


class Bookings:
    """Books replicas for requests. ``on_queue(n)`` hears each change of the queue's length."""

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        draw: Draw,
        *,
        queue_length_max: int,
        queue_wait_s_max: float,
        on_queue: Callable[[int], None],
        stale_patience_s: float = STALE_PATIENCE_S,
    ) -> None:
        self._stale_patience_s = stale_patience_s
        self._fleet = fleet
        self._clock = clock
        self._draw = draw
        self._queue_wait_s_max = queue_wait_s_max
        self._waiting: WaitingRoom[Waiter] = WaitingRoom(queue_length_max)
        self._on_queue = on_queue
        self._wake_asked = False

    async def book(
        self,
        need: Need,
        tenant: TenantId,
        deadline_monotonic_s: float,
        interruption: Callable[[Callable[[PanalError], None]], None],
        *,
        patience_s: float = 0.0,
    ) -> Choice:
        """A booked replica; give it back with ``release``.

        ``patience_s``: how long to wait while no replica is fit at all, which a broken answer may do;
        a new request waits a moment only for a node whose heartbeat is late, and longer for one that is
        loading the model.
        ``interruption(cancel)`` registers how the wait is broken off.
        Raises ModelResting, NotAllowed, BadRequest, QueueFull, QueueDeadline, DeadlineExceeded.
        """
        left_s = deadline_monotonic_s - self._clock.monotonic_seconds()
        if left_s <= 0:
            raise DeadlineExceeded
        if len(self._waiting) == 0:
            choice = self._choose(need)
            if choice is not None:
                return choice
        wait_s = self._queue_wait_s_max
        in_vain: PanalError = _waited_too_long(wait_s)
        try:
            self._explain(need)
        except ModelResting as resting:
            patience_s = patience_s or self._patience_s(need)
            if patience_s <= 0:
                raise
            wait_s, in_vain = min(wait_s, patience_s), resting
        if left_s < wait_s:
            wait_s, in_vain = left_s, DeadlineExceeded()
        return await self._wait(need, tenant, wait_s, in_vain, interruption)

    def knows_model(self, model: str) -> bool:
        """Whether a model of that name was ever served here."""
        return self._fleet.knows_model(model)

    def free_for(self, need: Need) -> bool:
        """Whether a replica would be booked for ``need`` this instant, without waiting."""
        if len(self._waiting):
            return False
        if self._fleet.sight.now is not Sight.CLEAR:
            return False
        candidates = self._fleet.candidates(need.model)
        return choose(candidates, need, self._clock.monotonic_seconds(), self._draw) is not None

    def release(self, choice: Choice) -> None:
        """The replica's slot is free again, as far as this gateway is concerned."""
        choice.own.running -= 1
        self.wake()

    def wake(self) -> None:
        """Something changed: ask the waiting ones again, once per turn of the loop."""
        if len(self._waiting) and not self._wake_asked:
            self._wake_asked = True
            asyncio.get_running_loop().call_soon(self._ask_everybody)

    def explain(self, need: Need) -> list[tuple[str, str]]:
        """Each known replica's node and why it does not fit now (empty text: it fits)."""
        now_s = self._clock.monotonic_seconds()
        return [
            (replica.node_name, unfit(replica, need, now_s) or "")
            for replica, _own in self._fleet.candidates(need.model)
        ]

    def _choose(self, need: Need) -> Choice | None:
        if self._fleet.sight.now is not Sight.CLEAR:
            return None
        candidates = self._fleet.candidates(need.model)
        choice = choose(candidates, need, self._clock.monotonic_seconds(), self._draw)
        if choice is not None:
            choice.own.running += 1
            choice.own.sent_since_report += 1
            choice.own.prefill_tokens_since_report += need.prompt_tokens
        return choice

    async def _wait(
        self,
        need: Need,
        tenant: TenantId,
        wait_s: float,
        in_vain: PanalError,
        interruption: Callable[[Callable[[PanalError], None]], None],
    ) -> Choice:
        loop = asyncio.get_running_loop()
        waiter = Waiter(need, tenant, loop.create_future())
        self._waiting.enter(tenant, waiter)
        self._on_queue(len(self._waiting))

        def fail(error: PanalError) -> None:
            if not waiter.future.done():
                waiter.future.set_exception(error)

        interruption(fail)
        self.wake()  # those before may wait for another model
        timer = loop.call_later(max(0.0, wait_s), fail, in_vain)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled() and not waiter.future.exception():
                self.release(waiter.future.result())
            raise
        finally:
            timer.cancel()
            self._waiting.leave(tenant, waiter)
            self._on_queue(len(self._waiting))

    def _ask_everybody(self) -> None:
        self._wake_asked = False
        for waiter in self._waiting.in_order():
            if waiter.future.done():
                continue
            choice = self._choose(waiter.need)
            if choice is not None:
                self._waiting.leave(waiter.tenant, waiter)
                self._waiting.served(waiter.tenant)
                waiter.future.set_result(choice)

    def _patience_s(self, need: Need) -> float:
        """How long a new request waits although no replica would take it now."""
        candidates = self._fleet.candidates(need.model)
        if any(self._fleet.starting(replica.key) and need.allowed(replica) for replica, _own in candidates):
            return self._queue_wait_s_max
        return self._stale_patience_s if self._fleet.sight.settling or self._only_late(need) else 0.0

    def _only_late(self, need: Need) -> bool:
        """Whether some replica would do if its node's heartbeat were not late."""
        now_s = self._clock.monotonic_seconds()
        candidates = self._fleet.candidates(need.model)
        return any(unfit(replica, need, now_s) == "not heard of lately" for replica, _own in candidates)

    def _explain(self, need: Need) -> None:
        """Raise if waiting is pointless: no replica could take the request even with a free slot."""
        if self._fleet.sight.now is not Sight.CLEAR:
            raise ModelResting("The nodes cannot be reached at the moment.", retry_after_s=RETRY_AFTER_S)
        now_s = self._clock.monotonic_seconds()
        candidates = self._fleet.candidates(need.model)
        reasons = {unfit(replica, need, now_s) for replica, _own in candidates}
        if None in reasons:
            return
        self._explain_for_good(need, candidates, reasons)
        called = need.called or need.model
        raise ModelResting(
            f"No node can serve the model '{called}' at the moment. Try again in a few seconds.",
            retry_after_s=RETRY_AFTER_S,
        )

    def _explain_for_good(
        self, need: Need, candidates: Sequence[Candidate], reasons: Collection[str | None]
    ) -> None:
        """Raise what no time would change; while nodes are on their way back to us nobody can say that."""
        if self._fleet.sight.settling:
            return
        late_too = set(reasons) <= {"may not see this data", "not heard of lately"}
        if candidates and late_too and not any(need.allowed(replica) for replica, _own in candidates):
            raise NotAllowed("No node may see data of this class or residency for this model.")
        if reasons == {"does not serve this route"}:
            called = need.called or need.model
            raise BadRequest(f"The model '{called}' does not serve {need.route.value}.", param="model")
        if reasons == {"context is too short"}:
            raise BadRequest("The prompt is longer than the model's context.", param="messages")


def _waited_too_long(wait_s: float) -> QueueDeadline:
    return QueueDeadline(
        f"No replica became free within {wait_s:.0f} s. Try again later.", retry_after_s=RETRY_AFTER_S
    )
