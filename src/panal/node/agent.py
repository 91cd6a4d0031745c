"""The node agent: one bus, one engine, one owner, wired together.

It dials out only, knows nothing but its own work, and ends cleanly: attempts are handed over, the engine
is stopped, no task is left.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum

from panal.bus.credentials import life_left_s
from panal.bus.seam import NodeBus
from panal.core.clock import Clock
from panal.core.errors import BusError, SettingsError
from panal.core.ids import IdSource, InstanceId, ReplicaId
from panal.core.nodes import NodeState
from panal.node.attempt import Attempt
from panal.node.attempts import Attempts, ReplicaIdentity
from panal.node.availability import Availability
from panal.node.counts import KeptCounts
from panal.node.engine_keeper import EngineKeeper, KeeperEvents
from panal.node.engines.engine import Engine
from panal.node.gpus import NodeGpus, PlacedEngine
from panal.node.heartbeats import Heartbeats
from panal.node.measuring import measure
from panal.node.outbox import Outbox
from panal.node.presence import GatewaysHeard
from panal.node.replica_report import replica_report
from panal.node.reports import Reports
from panal.node.settings import AgentSettings
from panal.node.waking import Waker
from panal.protocol.messages import (
    Acknowledge,
    BodyPart,
    Cancel,
    Heartbeat,
    Instruction,
    Present,
    RunAttempt,
    YieldReport,
)


class Ending(StrEnum):
    """Why ``run`` returned."""

    STOPPED = "stopped"
    REFUSED_INSTANCE = "refused_instance"
    CREDENTIAL_REFUSED = "credential_refused"


class Agent:
    """Everything is handed in. ``keep_credential`` stores a renewed one; it may raise SettingsError."""

    def __init__(
        self,
        settings: AgentSettings,
        bus: NodeBus,
        engine: Engine,
        availability: Availability,
        clock: Clock,
        ids: IdSource,
        *,
        keep_credential: Callable[[str], None] = lambda _credential: None,
        traced: Callable[[Attempt], None] | None = None,
        gpus: NodeGpus | None = None,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._gpus = gpus
        self._gpu_trouble = ""
        if gpus is not None:
            engine = PlacedEngine(engine, gpus, clock)
            gpus.watch.changed = self._gpus_changed
            gpus.watch.own = engine.process_ids
        self._engine = engine
        self._availability = availability
        self._clock = clock
        self._keep_credential = keep_credential
        self._log = logging.getLogger("panal.node")
        self.instance: InstanceId = ids.instance()
        self._ids = ids
        self.replica: ReplicaId = ids.replica()
        """A new one with every start of the engine: a request that failed on the old one may try again."""
        self.ending_reason = ""
        """A sentence for a person, where ``run`` did not simply end because it was told to."""
        self._cordoned = ""
        self._term = 0
        """The highest term that an instruction carried: who sends a lower one leads no more."""
        self._counts = KeptCounts()
        self._reports = Reports(settings, self.instance, self._counts, bus.report, clock)
        self._waker = Waker(clock)
        self._outbox = Outbox(bus.send_frames)
        self._attempts = Attempts(
            ReplicaIdentity(self.instance, self.replica),
            engine,
            self._outbox,
            self._counts,
            self.may_serve,
            clock,
            waiting_max=settings.waiting_max,
            begun=availability.attempt_started,
            over=availability.attempt_ended,
            traced=traced,
        )
        self._gateways = GatewaysHeard(self._attempts, bus.answers, clock)
        events = KeeperEvents(self._prepare_engine, self._engine_started, self._engine_stopped, self._changed)
        self._keeper = EngineKeeper(engine, events)
        self._heartbeats = Heartbeats(self._heartbeat, bus.heartbeat)
        self._stop = asyncio.Event()
        self._ending = Ending.STOPPED
        self._jobs: set[asyncio.Task[None]] = set()

    # --- life

    async def run(self) -> Ending:
        """Serve until stopped. Raises BusError when the bus cannot be reached at the start."""
        self._availability.attach(self)
        if not await self._on_the_bus():
            return self._ending
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._keeper.run(), name="engine keeper"),
                    group.create_task(self._availability.run(), name="availability"),
                    group.create_task(self._heartbeats.run(), name="heartbeats"),
                    group.create_task(self._reports.run(), name="reports"),
                    group.create_task(self._gateways.run(), name="gateways"),
                ]
                if self._gpus is not None:
                    tasks.append(group.create_task(self._gpus.run(), name="gpus"))
                await self._stop.wait()
                await self._leave()
                for task in tasks:
                    task.cancel()
        finally:
            for job in set(self._jobs):
                job.cancel()
            if self._jobs:
                await asyncio.wait(set(self._jobs))
            await self._attempts.close()
            await self._bus.close()
        return self._ending

    async def _on_the_bus(self) -> bool:
        """False when told to stop, or when the bus will not have the credential, before it is reached."""
        loop = asyncio.get_running_loop()
        starting = loop.create_task(self._bus.start(self), name="bus start")
        stopping = loop.create_task(self._stop.wait(), name="stop before start")
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not starting.done():
                starting.cancel()
            await asyncio.wait({starting, stopping})
        if starting.cancelled():
            return False
        if self._stop.is_set():
            starting.exception()  # whatever it was, the stop says more
            await self._bus.close()
            return False
        starting.result()
        return True

    def stop(self, ending: Ending = Ending.STOPPED, reason: str = "") -> None:
        """End ``run`` in order. The first call decides the ending."""
        if not self._stop.is_set():
            self._ending = ending
            self.ending_reason = reason
            self._stop.set()

    async def _leave(self) -> None:
        """Hand over what runs, then tell what was made."""
        self._cordoned = self._cordoned or "shutting down"
        self._heartbeats.beat()
        await self._attempts.leave_all(self._settings.grace_s)
        self._heartbeats.beat()
        self._reports.send()

    def _job(self, work: Awaitable[None], name: str) -> None:
        """Work that an instruction or the owner set off."""
        task = asyncio.get_running_loop().create_task(_reported(work, self._log, name), name=name)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    # --- from the bus

    def on_run(self, attempt: RunAttempt) -> None:
        self._attempts.run(attempt)

    def on_part(self, part: BodyPart) -> None:
        self._attempts.part(part)

    def on_acknowledge(self, acknowledgement: Acknowledge) -> None:
        self._attempts.acknowledge(acknowledgement)

    def on_cancel(self, cancel: Cancel) -> None:
        self._attempts.cancel(cancel)

    def on_present(self, present: Present) -> None:
        # Only the instance that is meant answers: a copy of this machine hears it too (P24).
        if present.instance == self.instance:
            self._gateways.heard(present)

    def on_connection(self, connected: bool) -> None:
        self._attempts.connection(connected)
        self._availability.bus_changed(connected=connected)
        if connected:
            self._changed()

    def on_refused(self, reason: str) -> None:
        self.stop(Ending.CREDENTIAL_REFUSED, reason)

    def on_instruction(self, instruction: Instruction) -> None:
        if instruction.instance not in ("", self.instance):
            return
        if 0 < instruction.term < self._term:
            self._log.warning("an instruction of an earlier term is ignored: %s", instruction.verb[:40])
            return
        self._term = max(self._term, instruction.term)
        verb = instruction.verb
        if verb == "counts_seen":
            self._counts.seen(instruction.attempts)
        elif verb == "credential":
            self._job(self._renew(instruction.credential), "renew")
        elif verb == "refuse":
            self.stop(Ending.REFUSED_INSTANCE, instruction.reason)
        elif verb == "stop":
            self.stop(Ending.STOPPED, instruction.reason)
        elif verb in ("cordon", "drain", "uncordon"):
            self._cordon(verb, instruction.reason)
        elif verb == "wake":
            self._job(self._waker.wake(instruction.macs), "wake")
        elif verb != "accept":
            self._log.warning("an unknown instruction is ignored: %s", verb[:40])
            return
        if verb not in ("counts_seen", "credential"):
            self._reports.carried_out(instruction.id)

    def _cordon(self, verb: str, reason: str) -> None:
        self._cordoned = "" if verb == "uncordon" else (reason or "cordoned by its operators")
        self._availability.drain(on=verb == "drain")
        if verb == "uncordon":
            self._attempts.stay()
            self._availability.wanted()
        self._changed()

    async def _renew(self, credential: str) -> None:
        try:
            await self._bus.renew(credential)
            self._keep_credential(credential)
        except (BusError, SettingsError) as error:
            self._log.warning("the new credential could not be used: %s", error)
            return
        self._reports.renewed(life_left_s(credential, self._clock))

    # --- engine and owner

    def may_serve(self) -> str | None:
        """None when a request may begin this instant, else the reason."""
        if self._cordoned:
            return self._cordoned
        if self._keeper.problem:
            return self._keeper.problem
        if not self._keeper.on:
            return "the engine is not running"
        if self._gpu_trouble:
            return self._gpu_trouble
        return self._availability.may_serve()

    async def _prepare_engine(self) -> None:
        self.replica = self._ids.replica()
        self._attempts.engine_started(self.replica)
        if self._settings.measure and not self._attempts.speeds.decode_s_per_token:
            await measure(self._engine, self._attempts.speeds, self._clock)
        if self._settings.measure and self._gpus is not None:
            await self._gpus.calibrated(self._engine, self._attempts.speeds)

    def _engine_started(self) -> None:
        self._gpu_trouble = self._gpus.trouble() if self._gpus is not None else ""
        self._attempts.stay()
        self._availability.engine_started()
        self._changed()

    def _engine_stopped(self, reason: str) -> None:
        if reason:
            self._job(self._attempts.fail_all(reason), "engine failed")
        self._gpu_trouble = self._gpus.trouble() if self._gpus is not None else ""
        self._availability.engine_stopped()
        self._changed()

    def _gpus_changed(self) -> None:
        """A lost GPU takes no work from this moment on; one that is back gets a fresh engine."""
        assert self._gpus is not None
        trouble = self._gpus.trouble()
        if trouble and not self._gpu_trouble:
            self._gpu_trouble = trouble
            self.hand_over(self._settings.grace_s)
            if self._gpus.cpu_when_lost:
                self._keeper.restart()
        elif not trouble and (self._gpu_trouble or self._gpus.can_return()):
            if self._keeper.on:  # the old engine's end takes the trouble away
                self.hand_over(self._settings.grace_s)
                self._keeper.restart()
            else:
                self._gpu_trouble = ""
        self._keeper.look_again()
        self._changed()

    def hand_over(self, grace_s: float) -> None:
        """See NodeWork."""
        self._job(self._attempts.leave_all(grace_s), "hand over")

    def start_engine(self) -> None:
        """See NodeWork."""
        self._attempts.stay()
        self._keeper.want_on()

    def stop_engine(self, *, kill: bool) -> None:
        """See NodeWork."""
        self.hand_over(0.0)
        if kill:
            self._keeper.kill()
        else:
            self._keeper.want_off()

    def state_changed(self) -> None:
        """See NodeWork. A hand-over that did not end in a stop of the engine is over now."""
        if self._availability.state.takes_work:
            self._attempts.stay()
        self._changed()

    def engine_process_ids(self) -> frozenset[int]:
        """See NodeWork."""
        return self._engine.process_ids()

    def limit_slots(self, share: float) -> None:
        """See NodeWork."""
        self._attempts.limit_slots(share)
        self._changed()

    def yielded(self, report: YieldReport) -> None:
        """See NodeWork."""
        self._reports.add_yield(report)

    # --- what it says

    def _changed(self) -> None:
        self._heartbeats.now()

    def _state(self) -> tuple[NodeState, str]:
        if self._keeper.problem:
            return NodeState.DEGRADED, self._keeper.problem
        trouble = self._gpu_trouble or (self._keeper.postponed.coarse if self._keeper.postponed else "")
        if trouble:
            return NodeState.DEGRADED, trouble
        state = self._availability.state
        if self._cordoned and state.takes_work:
            return NodeState.DRAINING, self._cordoned
        if state.takes_work and not self._keeper.on:
            return NodeState.STARTING, "starting"
        return state, self._availability.reason

    def _heartbeat(self, sequence: int) -> Heartbeat:
        state, reason = self._state()
        report = replica_report(
            self.replica,
            self._engine.facts,
            self._attempts,
            self._keeper,
            self._gpus,
            gpu_trouble=self._gpu_trouble,
        )
        return Heartbeat(
            node=self._settings.node,
            instance=self.instance,
            sequence=sequence,
            state=state.value,
            reason=reason[:200],
            agent_version=self._settings.agent_version,
            replicas=[report] if report.model else [],
            gpus=self._gpus.reports(changing=state.takes_work) if self._gpus is not None else [],
            hazards_per_h=self._availability.hazards_per_h(),
        )


async def _reported(work: Awaitable[None], log: logging.Logger, name: str) -> None:
    """A background step; a failure is told in the log and ends only that step."""
    try:
        await work
    except Exception:
        log.exception("%s failed unexpectedly", name)
