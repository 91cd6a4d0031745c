"""The owner's machine: single stories. Every pair and random walks are in test_owner_walks.py."""

from dataclasses import dataclass, field, replace

from panal.core.nodes import NodeClass, NodeState
from panal.core.settings import OwnerSettings
from panal.policy import owner_values as values
from panal.policy.owner import begin, handle
from panal.policy.owner_judgement import away_reason, required_idle_s
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
    policy_for,
)

DESK = policy_for(NodeClass.DESKTOP, OwnerSettings())
SERVER = policy_for(NodeClass.DEDICATED, OwnerSettings())


@dataclass
class Desk:
    """Drives the machine; ``idle`` is what the sensor would say."""

    policy: OwnerPolicy = DESK
    now_s: float = 1000.0
    idle_s: float = 7200.0
    owner: Owner = field(init=False)
    done: list[OwnerInstruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.owner, self.done = begin(self.policy, self.now_s)

    def send(self, event: OwnerEvent) -> list[OwnerInstruction]:
        self.owner, instructions = handle(self.owner, event)
        self.done += instructions
        return instructions

    def look(self, seconds: float = 0.25, *, touch: bool = False) -> list[OwnerInstruction]:
        self.now_s += seconds
        self.idle_s = 0.0 if touch else self.idle_s + seconds
        return self.send(Reading(self.now_s, self.idle_s)) + self.send(Tick(self.now_s))

    def look_for(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.look(1.0)

    def serving(self, attempts: int = 1) -> "Desk":
        self.look()
        self.send(EngineStarted(self.now_s))
        for _ in range(attempts):
            self.send(AttemptStarted(self.now_s))
        self.done.clear()
        return self

    def engine_gone(self) -> None:
        self.send(EngineStopped(self.now_s))
        self.send(EngineStopped(self.now_s))
        self.send(MemoryIsBack(self.now_s))


def test_an_owned_node_starts_closed_and_says_why() -> None:
    desk = Desk()
    assert desk.owner.state is NodeState.OWNER
    assert desk.owner.reason == values.UNKNOWN
    assert desk.done == [ReportChange("the sensor is silent")]


def test_an_idle_desk_goes_to_work() -> None:
    desk = Desk()
    assert StartEngine() in desk.look()
    assert desk.owner.state is NodeState.STARTING
    desk.send(EngineStarted(desk.now_s))
    assert desk.owner.state is NodeState.AVAILABLE
    desk.send(AttemptStarted(desk.now_s))
    assert desk.owner.state is NodeState.SERVING
    assert desk.owner.reason == ""
    desk.send(AttemptEnded(desk.now_s))
    assert desk.owner.state is NodeState.AVAILABLE


def test_a_desk_in_use_waits_for_its_time() -> None:
    desk = Desk(idle_s=890.0)
    desk.look()
    assert desk.owner.reason == values.IN_USE
    desk.look_for(8)
    assert desk.owner.state is NodeState.OWNER
    desk.look_for(3)
    assert desk.owner.state is NodeState.STARTING


def test_a_touch_hands_over_at_once_and_gives_the_memory_back() -> None:
    desk = Desk().serving(2)
    told = desk.look(touch=True)
    assert told[:2] == [StopTakingWork(values.IN_USE), HandOverAll(2.0)]
    assert desk.owner.state is NodeState.YIELDING
    assert StopEngine(kill=False) not in told
    assert StopEngine(kill=False) not in desk.look(1.0)
    assert StopEngine(kill=False) in desk.look(1.0)
    assert StopEngine(kill=True) not in desk.look(1.9)
    assert StopEngine(kill=True) in desk.look(0.2)
    assert StopEngine(kill=True) in desk.look(2.1)
    assert desk.send(EngineStopped(desk.now_s)) == [CheckMemory()]
    assert desk.look() == [CheckMemory()]
    desk.send(MemoryIsBack(desk.now_s))
    assert desk.owner.state is NodeState.OWNER
    assert desk.owner.engine is EnginePhase.OFF


def test_the_engine_stops_as_soon_as_the_last_attempt_has_moved() -> None:
    desk = Desk().serving(2)
    desk.look(touch=True)
    desk.send(AttemptEnded(desk.now_s))
    assert desk.send(AttemptEnded(desk.now_s)) == [StopEngine(kill=False)]


def test_an_idle_engine_stops_at_once() -> None:
    desk = Desk().serving(0)
    assert StopEngine(kill=False) in desk.look(touch=True)
    starting = Desk()
    starting.look()
    assert StopEngine(kill=False) in starting.look(touch=True)


def test_memory_that_does_not_come_back_is_reported_once_and_bars_work() -> None:
    desk = Desk().serving(0)
    desk.look(touch=True)
    desk.send(EngineStopped(desk.now_s))
    desk.done.clear()
    desk.look_for(2000)
    assert [one for one in desk.done if isinstance(one, ReportChange) and "memory" in one.problem] == [
        ReportChange("the engine's memory is not back after 10 s")
    ]
    assert desk.owner.state is NodeState.YIELDING
    desk.send(MemoryIsBack(desk.now_s))
    assert desk.owner.state is NodeState.STARTING


def test_after_a_yield_the_node_serves_after_the_cooldown_and_not_before() -> None:
    policy = replace(DESK, idle_s=60.0, cooldown_s=300.0)
    desk = Desk(policy).serving()
    desk.look(touch=True)
    desk.send(AttemptEnded(desk.now_s))
    desk.engine_gone()
    desk.look_for(298)
    assert desk.owner.state is NodeState.OWNER
    desk.look_for(3)
    assert desk.owner.state is NodeState.STARTING


def test_flapping_doubles_the_cooldown_and_calm_resets_it() -> None:
    desk = Desk(replace(DESK, idle_s=60.0, cooldown_s=300.0))
    seen = []
    for _ in range(6):
        desk.look_for(required_idle_s(desk.owner, desk.now_s) + 2)
        assert desk.owner.state is NodeState.STARTING
        desk.look(touch=True)
        desk.engine_gone()
        assert desk.owner.state is NodeState.OWNER
        seen.append(desk.owner.cooldown_s)
    assert seen == [300.0, 300.0, 600.0, 1200.0, 2400.0, 3600.0]
    desk.look_for(3605)
    desk.send(EngineStarted(desk.now_s))
    desk.look_for(3600)
    desk.look(touch=True)
    assert desk.owner.cooldown_s == 300.0


def test_an_unknown_sensor_is_an_owner_at_work() -> None:
    desk = Desk().serving()
    told = desk.send(Reading(desk.now_s + 0.25, None, "no display"))
    assert told[:2] == [StopTakingWork(values.UNKNOWN), HandOverAll(2.0)]
    assert told[-1] == ReportChange("no display")
    assert desk.owner.reason == values.UNKNOWN


def test_a_silent_sensor_is_an_owner_at_work() -> None:
    desk = Desk().serving()
    assert desk.send(Tick(desk.now_s + 10.0)) == []
    assert StopTakingWork(values.UNKNOWN) in desk.send(Tick(desk.now_s + 10.1))
    desk.now_s += 20
    desk.idle_s += 20
    desk.engine_gone()
    desk.look()
    assert desk.owner.state is NodeState.OWNER, "a gap counts as input, whatever the sensor says afterwards"


def test_a_dedicated_node_ignores_sensors_and_obeys_a_pause() -> None:
    desk = Desk(SERVER)
    assert desk.done[0] == StartEngine()
    desk.send(EngineStarted(desk.now_s))
    desk.look(touch=True)
    desk.send(Reading(desk.now_s, None, "broken"))
    assert desk.owner.state is NodeState.AVAILABLE
    told = desk.send(Paused(desk.now_s, float("inf")))
    assert told[0] == StopTakingWork(values.PAUSED)
    assert StopEngine(kill=False) in told
    desk.engine_gone()
    assert desk.owner.reason == values.PAUSED
    assert StartEngine() in desk.send(Resumed(desk.now_s))


def test_a_pause_ends_by_itself_at_its_time() -> None:
    desk = Desk(SERVER)
    desk.send(Paused(desk.now_s, desk.now_s + 60.0))
    desk.engine_gone()
    desk.send(Tick(desk.now_s + 59.9))
    assert desk.owner.state is NodeState.OWNER
    desk.send(Tick(desk.now_s + 60.0))
    assert desk.owner.state is NodeState.STARTING


def test_no_remote_word_beats_a_pause() -> None:
    desk = Desk().serving()
    desk.send(Paused(desk.now_s, float("inf")))
    desk.send(AttemptEnded(desk.now_s))
    desk.engine_gone()
    for event in (
        DrainAsked(desk.now_s, drain=True),
        DrainAsked(desk.now_s, drain=False),
        PolicyChanged(desk.now_s, SERVER),
        EngineStarted(desk.now_s),
        EngineStopped(desk.now_s),
        MemoryIsBack(desk.now_s),
    ):
        desk.send(event)
        desk.look_for(5)
        assert not desk.owner.state.takes_work
        assert away_reason(desk.owner, desk.now_s) == values.PAUSED
    assert StartEngine() not in desk.done


def test_a_pause_that_outlived_a_restart_holds_from_the_start() -> None:
    owner, told = begin(SERVER, 10.0, paused_until_s=float("inf"))
    assert owner.reason == values.PAUSED
    assert StartEngine() not in told


def test_a_drain_lets_attempts_end_then_hands_over_then_stops() -> None:
    desk = Desk().serving(1)
    assert desk.send(DrainAsked(desk.now_s, drain=True))[0] == StopTakingWork(values.DRAINING)
    desk.look(9.0)
    assert not any(isinstance(one, HandOverAll) for one in desk.done)
    assert HandOverAll(2.0) in desk.look(1.1)
    assert StopEngine(kill=False) in desk.look(2.1)
    desk.engine_gone()
    assert desk.owner.state is NodeState.DRAINING
    desk.send(DrainAsked(desk.now_s, drain=False))
    assert desk.owner.state is NodeState.STARTING


def test_a_drain_taken_back_in_time_goes_on_serving() -> None:
    desk = Desk().serving(1)
    desk.send(DrainAsked(desk.now_s, drain=True))
    desk.send(DrainAsked(desk.now_s, drain=False))
    assert desk.owner.state is NodeState.SERVING
    assert StopEngine(kill=False) not in desk.done


def test_the_owner_comes_before_a_drain() -> None:
    desk = Desk().serving(1)
    desk.send(DrainAsked(desk.now_s, drain=True))
    assert HandOverAll(2.0) in desk.look(touch=True)
    assert desk.owner.state is NodeState.YIELDING
    desk.send(AttemptEnded(desk.now_s))
    desk.engine_gone()
    assert desk.owner.state is NodeState.DRAINING


def test_a_crashed_engine_is_started_again() -> None:
    desk = Desk().serving(1)
    assert StartEngine() in desk.send(EngineStopped(desk.now_s))
    assert desk.owner.state is NodeState.STARTING


def test_an_engine_that_crashes_during_a_yield_is_still_told_to_stop() -> None:
    desk = Desk().serving(1)
    desk.look(touch=True)
    assert desk.send(EngineStopped(desk.now_s)) == [StopEngine(kill=False)]
    assert desk.send(EngineStopped(desk.now_s)) == [CheckMemory()]


def test_an_engine_that_started_after_all_is_stopped_again() -> None:
    desk = Desk()
    desk.look()
    desk.look(touch=True)
    assert StopEngine(kill=False) in desk.send(EngineStarted(desk.now_s))
    desk.engine_gone()
    assert desk.owner.state is NodeState.OWNER
    assert StopEngine(kill=False) in desk.send(EngineStarted(desk.now_s))
    assert desk.owner.state is NodeState.YIELDING


def test_an_attempt_that_crossed_with_the_yield_is_handed_over_too() -> None:
    desk = Desk().serving(1)
    desk.look(touch=True)
    told = desk.send(AttemptStarted(desk.now_s + 0.5))
    assert told == [HandOverAll(1.5)]
    desk.send(AttemptEnded(desk.now_s))
    desk.send(AttemptEnded(desk.now_s))
    desk.engine_gone()
    assert HandOverAll(0.0) in desk.send(AttemptStarted(desk.now_s + 60))


def test_reasons_are_coarse() -> None:
    assert {values.IN_USE, values.PAUSED, values.UNKNOWN} == {
        "in use by its owner",
        "paused by its owner",
        "idle state unknown",
    }


def test_overrides_change_only_what_they_name() -> None:
    policy = policy_for(NodeClass.LAPTOP, OwnerSettings(idle_s=5.0))
    assert policy.idle_s == 5.0
    assert policy.cooldown_s == 300.0
    assert policy.owned
    assert not policy_for(NodeClass.DEDICATED, OwnerSettings()).owned
