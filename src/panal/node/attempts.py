"""All attempts of one replica: taking them, refusing them, ending them."""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from panal.core.clock import Clock
from panal.core.ids import GatewayId, InstanceId, ReplicaId
from panal.node.attempt import LEAVING, Attempt, Workplace
from panal.node.counts import KeptCounts
from panal.node.engines.engine import Engine
from panal.node.outbox import Outbox
from panal.node.speeds import MeasuredSpeeds
from panal.protocol.messages import Acknowledge, BodyPart, Cancel, Event, RunAttempt, WireError

DISCONNECTED_S_MAX = 5.0
"""After so long without the bus an engine works for nobody any more: whoever still waits hears, when the
bus is back, that the attempt is gone (``reconcile``), and asks again."""

OUT_OF_NUMBER = 2**31
"""The number of a frame that no attempt reaches: it tells a gateway that something was lost."""

WAITING_MAX_DEFAULT = 4

MayServe = Callable[[], str | None]
"""None when the node takes work; else the reason why not, free of personal facts."""


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """Whom attempts are addressed to."""

    instance: InstanceId
    replica: ReplicaId


class Attempts:
    """``slots`` attempts run; a few more may wait, since gateways' reports are a moment old."""

    def __init__(
        self,
        identity: ReplicaIdentity,
        engine: Engine,
        outbox: Outbox,
        counts: KeptCounts,
        may_serve: MayServe,
        clock: Clock,
        *,
        waiting_max: int = WAITING_MAX_DEFAULT,
        begun: Callable[[], None] = lambda: None,
        over: Callable[[], None] = lambda: None,
        traced: Callable[[Attempt], None] | None = None,
    ) -> None:
        """``traced`` hears of each attempt that is over; None: no traces are made."""
        self._identity = identity
        self._slots = engine.facts.slots
        self._outbox = outbox
        self._counts = counts
        self._may_serve = may_serve
        self._waiting_max = waiting_max
        self._share = 1.0
        self._begun = begun
        self._on_over = over
        self._traced = traced
        self._attempts: dict[str, Attempt] = {}
        self._tasks: dict[asyncio.Task[None], Attempt] = {}
        self._lost_timer: asyncio.TimerHandle | None = None
        self._leaving = False
        self.speeds = MeasuredSpeeds()
        self._workplace = Workplace(
            engine,
            asyncio.Semaphore(self._slots),
            self.speeds,
            clock,
            logging.getLogger("panal.node.attempts"),
        )

    def engine_started(self, replica: ReplicaId) -> None:
        """The engine is new, and so is the replica: what was meant for the old one is refused.

        The engine says how many slots it has; no attempt of the old one is left.
        """
        self._identity = ReplicaIdentity(self._identity.instance, replica)
        self._slots = self._workplace.engine.facts.slots
        self._workplace.slots = asyncio.Semaphore(self._slots)

    def limit_slots(self, share: float) -> None:
        """Take only this share of the slots, at least one, until told otherwise. What runs goes on."""
        self._share = share

    # --- what the heartbeat tells

    @property
    def slots(self) -> int:
        """Requests that may run at once now."""
        return max(1, int(self._slots * self._share))

    @property
    def running(self) -> int:
        """Requests inside the engine."""
        return self._workplace.in_engine

    @property
    def waiting(self) -> int:
        return sum(1 for attempt in self._attempts.values() if not attempt.started and not attempt.ended)

    @property
    def pending_prefill_tokens(self) -> int:
        return sum(attempt.tokens_to_read for attempt in self._attempts.values())

    # --- from the bus; none of these blocks or raises

    def run(self, run: RunAttempt) -> None:
        """Begin an attempt, or refuse it with one event.

        One for another instance is not ours to answer, not even with a refusal: if this machine is a
        copy, the first machine hears it too and is answering it (P24).
        """
        if run.instance != self._identity.instance or run.attempt in self._attempts:
            return
        lane = self._outbox.lane(run.attempt, GatewayId(run.gateway))
        refusal = self._refusal(run)
        if refusal is not None:
            code, message = refusal
            lane.put(Event(error=WireError(kind="refused", code=code, message=message)))
            return
        attempt = Attempt(run, lane, self._workplace)
        self._attempts[run.attempt] = attempt
        task = asyncio.get_running_loop().create_task(attempt.serve(), name=f"attempt {run.attempt}")
        attempt.begin(task)
        self._tasks[task] = attempt
        task.add_done_callback(lambda done: self._over(attempt, done))
        self._begun()

    def _refusal(self, run: RunAttempt) -> tuple[str, str] | None:
        if run.replica != self._identity.replica:
            return "wrong_replica", "this agent serves another replica"
        if self._leaving:
            return "node_leaving", LEAVING.message
        reason = self._may_serve()
        if reason is not None:
            return "not_serving", reason
        if run.deadline_s <= 0:
            return "too_late", "the deadline of this request is over"
        if self.running + self.waiting >= self.slots + self._waiting_max:
            return "slots_full", "all slots of this replica are taken"
        return None

    def part(self, part: BodyPart) -> None:
        attempt = self._attempts.get(part.attempt)
        if attempt is not None:
            attempt.add_part(part)

    def acknowledge(self, acknowledgement: Acknowledge) -> None:
        attempt = self._attempts.get(acknowledgement.attempt)
        if attempt is not None:
            attempt.lane.acknowledge(acknowledgement.data_bytes)

    def cancel(self, cancel: Cancel) -> None:
        attempt = self._attempts.get(cancel.attempt)
        if attempt is not None:
            attempt.stop("cancelled", None)

    def gateways(self) -> set[GatewayId]:
        """Those for which the engine works or shall work."""
        return {attempt.lane.gateway for attempt in self._attempts.values() if not attempt.ended}

    def reconcile(self, gateway: GatewayId, followed: Collection[str], *, partial: bool) -> None:
        """A gateway says which attempts it follows here: whatever was lost between us shows now.

        One that we do not know never came, or its end was lost: the gateway learns it by a frame out of
        number. One that it does not follow any more is ended, unless the list is ``partial``.
        """
        for name in followed:
            if name not in self._attempts:
                self._tell_unknown(name, gateway)
        if partial:
            return
        named = frozenset(followed)
        for name, attempt in list(self._attempts.items()):
            if attempt.lane.gateway == gateway and name not in named:
                attempt.stop("cancelled", None)

    def _tell_unknown(self, name: str, gateway: GatewayId) -> None:
        lane = self._outbox.lane(name, gateway)
        lane.number = OUT_OF_NUMBER
        message = "this node does not know the attempt"
        lane.put(Event(error=WireError(kind="failed", code="attempt_unknown", message=message)))

    def abandon(self, gateway: GatewayId) -> None:
        """The gateway is gone: nobody reads what is made for it."""
        stopped = [each for each in list(self._attempts.values()) if each.lane.gateway == gateway]
        if stopped:
            self._workplace.log.warning("a gateway is gone; %d of its attempts are stopped", len(stopped))
        for attempt in stopped:
            attempt.stop("gateway_lost", None)

    def connection(self, connected: bool) -> None:
        """The bus came or went. What could not be sent goes out when it is back soon."""
        if self._lost_timer is not None:
            self._lost_timer.cancel()
            self._lost_timer = None
        if connected:
            self._outbox.flush()
        else:
            self._lost_timer = asyncio.get_running_loop().call_later(DISCONNECTED_S_MAX, self._bus_lost)

    def _bus_lost(self) -> None:
        self._lost_timer = None
        for attempt in list(self._attempts.values()):
            attempt.stop("bus_lost", None)

    # --- from the node

    async def leave_all(self, grace_s: float) -> None:
        """Tell every gateway at once that this node leaves; stop generating after ``grace_s`` at the latest.

        New attempts are refused until ``stay`` is called.
        """
        self._leaving = True
        for attempt in list(self._attempts.values()):
            attempt.leave()
        in_engine = [task for task, attempt in self._tasks.items() if not attempt.ended]
        if in_engine and grace_s > 0:
            await asyncio.wait(in_engine, timeout=grace_s)
        await self._stop("leaving", LEAVING, also_ended=False)

    def stay(self) -> None:
        """Take work again after ``leave_all``."""
        self._leaving = False

    async def fail_all(self, message: str) -> None:
        """The engine is gone: every attempt in it has failed."""
        error = WireError(kind="failed", code="engine_failed", message=message)
        await self._stop("failed", error, also_ended=False)

    async def close(self) -> None:
        """End everything, answers that wait for their reader too; no task is left."""
        self._leaving = True
        if self._lost_timer is not None:
            self._lost_timer.cancel()
            self._lost_timer = None
        await self._stop("leaving", LEAVING, also_ended=True)

    async def _stop(self, outcome: str, error: WireError, *, also_ended: bool) -> None:
        stopped = [task for task, attempt in self._tasks.items() if also_ended or not attempt.ended]
        for task in stopped:
            self._tasks[task].stop(outcome, error)
        if stopped:
            await asyncio.wait(stopped)
        self._outbox.flush()

    def _over(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        attempt.over()
        self._tasks.pop(task, None)
        self._attempts.pop(attempt.run_message.attempt, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._workplace.log.error("an attempt's task failed", exc_info=error)
        if attempt.started:
            self._counts.keep(attempt.counts())
        self._on_over()
        if self._traced is not None:
            self._traced(attempt)
