"""Watches the owner: polls the sensor and the desk's files, and carries out what the machine decides.

An Availability (node/availability.py). Everything runs on the event loop; a poll takes some 0.2 ms, at
most 0.3 s where an X server hangs. Slower sensors have lives of their own (senses.py).
"""

import asyncio
import logging
from collections import deque
from math import inf

from panal.core.clock import Clock
from panal.core.errors import SettingsError
from panal.core.nodes import NodeState
from panal.node.availability import NodeWork
from panal.node.desk import STATUS_EVERY_S, Desk
from panal.node.hardware.idle import Idle, IdleSensor, LivingSensor
from panal.node.hardware.learnt_calendar import LearntCalendar
from panal.node.hardware.memory import EngineMemory, is_back
from panal.node.hardware.senses import Senses
from panal.node.hardware.yield_phases import YieldPhases
from panal.policy import owner_values as values
from panal.policy.owner import begin, handle
from panal.policy.owner_state import Owner
from panal.policy.owner_values import (
    AttemptEnded,
    AttemptStarted,
    CheckMemory,
    DrainAsked,
    EnginePhase,
    EngineStarted,
    EngineStopped,
    HandOverAll,
    LimitSlots,
    MemoryIsBack,
    OwnerEvent,
    OwnerInstruction,
    OwnerPolicy,
    Paused,
    PolicyChanged,
    Reading,
    ReportChange,
    Resumed,
    StartEngine,
    StopEngine,
    StopTakingWork,
    Tick,
)
from panal.policy.signs import BusChanged, GpuUse, Wanted
from panal.telemetry.logs import fields

POLL_S_MAX = 0.25
OWNER_THERE = (values.IN_USE, values.PAUSED, values.UNKNOWN, values.SLEEP)

PAUSE_MOVED_S = 0.5
"""A pause's end that moved by less, because the machine's clock was corrected, is the same end."""


class OwnerWatch:
    """``poll_s`` is at most POLL_S_MAX. The sensor is not read on machines without an owner."""

    def __init__(
        self,
        policy: OwnerPolicy,
        sensor: IdleSensor,
        desk: Desk,
        memory: EngineMemory,
        clock: Clock,
        *,
        poll_s: float = POLL_S_MAX,
        senses: Senses | None = None,
        calendar: LearntCalendar | None = None,
    ) -> None:
        self._sensor = sensor
        self._desk = desk
        self._memory = memory
        self._clock = clock
        self._senses = senses
        self._calendar = calendar
        self._poll_s = min(poll_s, POLL_S_MAX)
        self._log = logging.getLogger("panal.node.owner")
        self._work: NodeWork | None = None
        self._logged_state = NodeState.STARTING
        self._owner, _ = begin(policy, clock.monotonic_seconds())
        self._looked_s = -inf
        self._told_s = -inf
        self._baseline_bytes = 0
        self._phases = YieldPhases()
        self._waiting: deque[OwnerEvent] = deque()
        self._handling = False

    # --- what the agent asks

    @property
    def state(self) -> NodeState:
        return self._owner.state

    @property
    def reason(self) -> str:
        return self._owner.reason

    @property
    def problem(self) -> str:
        """The sensor's own words when it is not believed; not for other machines."""
        return self._owner.sight.problem if self._owner.sight is not None else ""

    def may_serve(self) -> str | None:
        owner = self._owner
        if not owner.state.takes_work:
            return owner.reason or values.UNKNOWN
        if owner.policy.owned and self._now() - self._looked_s > owner.policy.sensor_stale_s:
            return values.UNKNOWN
        return None

    # --- what the agent tells

    def attach(self, work: NodeWork) -> None:
        self._work = work

    def attempt_started(self) -> None:
        self._feed(AttemptStarted(self._now()))

    def attempt_ended(self) -> None:
        self._feed(AttemptEnded(self._now()))

    def engine_started(self) -> None:
        self._remember_processes()
        self._feed(EngineStarted(self._now()))

    def engine_stopped(self) -> None:
        self._feed(EngineStopped(self._now()))

    def drain(self, *, on: bool) -> None:
        self._feed(DrainAsked(self._now(), drain=on))

    def bus_changed(self, *, connected: bool) -> None:
        self._feed(BusChanged(self._now(), connected))

    def wanted(self) -> None:
        self._feed(Wanted(self._now()))

    def hazards_per_h(self) -> list[float]:
        if self._calendar is None or not self._owner.policy.owned:
            return []
        return self._calendar.hazards_per_h()

    def change_policy(self, policy: OwnerPolicy) -> None:
        """Another policy from the operators. It does not end a pause."""
        self._feed(PolicyChanged(self._now(), policy))

    async def run(self) -> None:
        """Watch until cancelled. Call ``attach`` first."""
        before = self._owner
        self._owner, instructions = begin(before.policy, self._now(), self._paused_until_s())
        self._carry_out(instructions)
        try:
            async with asyncio.TaskGroup() as group:
                if self._senses is not None:
                    group.create_task(self._senses.run(), name="senses")
                if isinstance(self._sensor, LivingSensor):
                    group.create_task(self._sensor.run(), name="input sensor")
                while True:
                    self.look()
                    await asyncio.sleep(self._poll_s)
        finally:
            self._sensor.close()
            if self._calendar is not None:
                self._calendar.keep()

    def look(self) -> None:
        """One poll."""
        until_s = self._paused_until_s()
        paused = self._owner.paused_until_s
        if until_s == -inf and paused > self._now():
            self._feed(Resumed(self._now()))
        elif until_s > -inf and until_s != paused and not abs(until_s - paused) < PAUSE_MOVED_S:
            self._feed(Paused(self._now(), until_s))
        if self._senses is not None:
            self._feed(self._senses.signs())
            use = self._senses.gpu_use()
            if use is None and self._owner.gpu is not None:
                use = GpuUse(self._now(), foreign=False, there=False)
            if use is not None:
                self._feed(use)
        if self._owner.policy.owned:
            self._feed(self._reading())
            if self._senses is not None:
                self._senses.owner_is_away(self._owner.state.takes_work)
        self._looked_s = self._now()
        self._feed(Tick(self._looked_s))
        if self._senses is not None:
            self._senses.machine_is_back(not self._owner.attempts and self._owner.engine is EnginePhase.OFF)
        if self._looked_s - self._told_s >= STATUS_EVERY_S:
            self._tell_desk()
        if self._calendar is not None and self._owner.policy.owned:
            self._calendar.learn(free=self._owner.reason not in OWNER_THERE)

    # --- inside

    def _sensor_words(self) -> dict[str, str]:
        if self._senses is None:
            return {}
        sight = self._owner.sight
        word = "a machine of nobody's own" if not self._owner.policy.owned else self.problem
        words = {"input": word or f"seen through {getattr(self._sensor, 'name', 'its sensor')}"}
        if self._owner.policy.owned and sight is None:
            words["input"] = "not asked yet"
        return {**words, **self._senses.words()}

    def _now(self) -> float:
        return self._clock.monotonic_seconds()

    def _paused_until_s(self) -> float:
        until_utc_s = self._desk.paused_until_utc_s()
        if until_utc_s is None:
            return -inf
        return self._now() + until_utc_s - self._clock.utc_seconds()

    def _reading(self) -> Reading:
        try:
            found = self._sensor.read()
        except Exception as error:  # noqa: BLE001 - a broken sensor means an owner at work, not a dead agent
            return Reading(self._now(), None, f"the sensor failed: {type(error).__name__}")
        if isinstance(found, Idle):
            return Reading(self._now(), found.seconds)
        return Reading(self._now(), None, found.reason)

    def _feed(self, event: OwnerEvent) -> None:
        """Handle an event, and those that its instructions cause, one after the other."""
        self._waiting.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._waiting:
                self._handle(self._waiting.popleft())
        finally:
            self._handling = False

    def _handle(self, event: OwnerEvent) -> None:
        before = self._owner
        self._owner, instructions = handle(before, event)
        report = self._phases.step(before, self._owner, event.now_s)
        self._carry_out(instructions)
        if report is not None:
            words = {name: round(getattr(report, name), 3) for name in report.__struct_fields__}
            self._log.info("the machine is back with its owner", extra=fields(action="yielded", **words))
            if self._work is not None:
                self._work.yielded(report)

    def _carry_out(self, instructions: list[OwnerInstruction]) -> None:
        work = self._work
        if work is None:
            return
        for instruction in instructions:
            match instruction:
                case StopTakingWork():
                    pass  # may_serve says so from this moment on
                case HandOverAll():
                    work.hand_over(instruction.grace_s)
                case StopEngine():
                    self._remember_processes()
                    work.stop_engine(kill=instruction.kill)
                case StartEngine():
                    self._baseline_bytes = self._memory.held_bytes() or 0
                    work.start_engine()
                case CheckMemory():
                    self._check_memory()
                case LimitSlots():
                    work.limit_slots(instruction.share)
                case ReportChange():
                    self._report(work, instruction.problem)

    def _remember_processes(self) -> None:
        if self._work is not None:
            self._memory.look(self._work.engine_process_ids())

    def _check_memory(self) -> None:
        survivors = self._memory.end_survivors()
        if survivors:
            self._log.warning(
                "the engine left processes behind; they are killed",
                extra=fields(action="survivors_killed", pids=" ".join(map(str, survivors))),
            )
        if is_back(self._memory.held_bytes(), self._baseline_bytes):
            self._feed(MemoryIsBack(self._now()))

    def _report(self, work: NodeWork, problem: str) -> None:
        owner: Owner = self._owner
        level = self._level(owner.state, problem)
        words = fields(
            action="owner_state", state=owner.state.value, reason=owner.reason, problem=problem or None
        )
        self._log.log(level, "the node is %s", owner.state.value, extra=words)
        work.state_changed()
        self._tell_desk()

    def _level(self, state: NodeState, problem: str) -> int:
        """Every request makes a node serving and available again: that is no news."""
        usual = state.takes_work and self._logged_state.takes_work
        self._logged_state = state
        if problem:
            return logging.WARNING
        return logging.DEBUG if usual else logging.INFO

    def _tell_desk(self) -> None:
        self._told_s = self._now()
        owner = self._owner
        waits = owner.engine is EnginePhase.CHECKING and owner.late
        problem = "the engine's memory is not back" if waits else self.problem
        try:
            self._desk.write_status(
                owner.state.value, owner.reason, problem, owner.attempts, self._sensor_words()
            )
        except SettingsError as error:
            self._log.warning("the desk's status cannot be written: %s", error.message)
