"""The owner's machine: every state with every event, and random walks against what must never happen."""

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from panal.core.nodes import NodeState
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
)
from panal.policy.sight import Sight

NOW = 5000.0
POLICY = OwnerPolicy(owned=True, idle_s=60.0, cooldown_s=60.0)
SERVER = OwnerPolicy(owned=False, idle_s=0.0, cooldown_s=0.0)

OW, ST, AV, SE, YI, DR = (
    NodeState.OWNER,
    NodeState.STARTING,
    NodeState.AVAILABLE,
    NodeState.SERVING,
    NodeState.YIELDING,
    NodeState.DRAINING,
)
ENGINE = {
    OW: EnginePhase.OFF,
    ST: EnginePhase.STARTING,
    AV: EnginePhase.ON,
    SE: EnginePhase.ON,
    YI: EnginePhase.ON,
}


def in_state(state: NodeState, *, engine: EnginePhase | None = None) -> Owner:
    """The machine in ``state``, input long ago except where the owner holds it."""
    busy = state in (OW, YI)
    sight = Sight(NOW - 0.25, NOW - 1.0 if busy else NOW - 900.0, NOW - 1.0 if busy else NOW - 900.0)
    reason = {
        OW: "in use by its owner",
        YI: "in use by its owner",
        ST: "starting",
        DR: "drained by its operators",
    }
    return Owner(
        POLICY,
        state,
        reason.get(state, ""),
        engine=engine or ENGINE.get(state, EnginePhase.ON),
        attempts=1 if state in (SE, YI, DR) else 0,
        sight=sight,
        active=busy,
        draining=state is DR,
        leaving_from_s=NOW - 0.5,
        handed_over_s=NOW - 0.5 if state is YI else inf,
        cooldown_s=60.0,
    )


def touch(owner: Owner) -> OwnerEvent:
    return Reading(NOW, 0.0)


def still(owner: Owner) -> OwnerEvent:
    assert owner.sight is not None
    return Reading(NOW, NOW - owner.sight.input_s)


EVENTS: dict[str, OwnerEvent] = {
    "unknown": Reading(NOW, None, "broken"),
    "attempt": AttemptStarted(NOW),
    "ended": AttemptEnded(NOW),
    "engine": EngineStarted(NOW),
    "gone": EngineStopped(NOW),
    "memory": MemoryIsBack(NOW),
    "pause": Paused(NOW, inf),
    "resume": Resumed(NOW),
    "drain": DrainAsked(NOW, drain=True),
    "undrain": DrainAsked(NOW, drain=False),
    "server": PolicyChanged(NOW, SERVER),
    "tick": Tick(NOW),
}

# For each state: where each event leads. What is missing changes nothing.
TABLE: dict[NodeState, dict[str, NodeState]] = {
    OW: {"engine": YI, "drain": DR, "server": ST},
    ST: {"touch": YI, "unknown": YI, "pause": YI, "engine": AV, "drain": DR},
    AV: {"touch": YI, "unknown": YI, "pause": YI, "attempt": SE, "gone": ST, "drain": DR},
    SE: {"touch": YI, "unknown": YI, "pause": YI, "ended": AV, "gone": ST, "drain": DR},
    YI: {},
    DR: {"touch": YI, "unknown": YI, "pause": YI, "undrain": SE},
}


@pytest.mark.parametrize("state", list(TABLE))
@pytest.mark.parametrize("name", ["touch", "still", *EVENTS])
def test_every_state_meets_every_event(state: NodeState, name: str) -> None:
    owner = in_state(state)
    event = EVENTS[name] if name in EVENTS else (touch(owner) if name == "touch" else still(owner))
    after, told = handle(owner, event)
    assert after.state is TABLE[state].get(name, state)
    assert (after.state, after.reason) == (state, owner.reason) or any(
        isinstance(one, ReportChange) for one in told
    )
    assert after.reason or after.state.takes_work
    if state.takes_work and not after.state.takes_work and after.state is not ST:
        assert isinstance(told[0], StopTakingWork)
        if after.state is YI and owner.attempts:
            assert told[1] == HandOverAll(2.0)
    if after.state is ST and state is not ST:
        assert StartEngine() in told


@pytest.mark.parametrize("draining", [False, True])
@pytest.mark.parametrize("phase", list(EnginePhase))
@pytest.mark.parametrize("name", ["gone", "memory", "tick", "engine", "ended"])
def test_a_yield_walks_the_engine_down(phase: EnginePhase, name: str, draining: bool) -> None:
    owner = replace(in_state(YI, engine=phase), attempts=0, draining=draining, stop_asked_s=NOW - 1.0)
    after, told = handle(owner, EVENTS[name])
    end = DR if draining else OW
    if phase is EnginePhase.OFF and name != "engine":
        assert after.state is end
    elif phase is EnginePhase.CHECKING and name == "memory":
        assert (after.state, after.engine) == (end, EnginePhase.OFF)
    else:
        assert after.state is YI
    if name == "gone" and phase in (EnginePhase.STOPPING, EnginePhase.CHECKING):
        assert CheckMemory() in told
    if name == "engine" or phase in (EnginePhase.ON, EnginePhase.STARTING):
        assert StopEngine(kill=False) in told


class Fleet:
    """Does what the machine says, and checks at each step what must never happen."""

    def __init__(self, policy: OwnerPolicy) -> None:
        self.now_s = 1000.0
        self.owner, told = begin(policy, self.now_s)
        self.wanted = False
        self.paused_until_s = -inf
        self.last_input_s = -inf
        self.note(told)

    def note(self, told: list[OwnerInstruction]) -> None:
        for one in told:
            if isinstance(one, StartEngine):
                self.wanted = True
            if isinstance(one, StopEngine):
                self.wanted = False

    def send(self, event: OwnerEvent) -> None:
        before = self.owner
        if isinstance(event, Paused):
            self.paused_until_s = event.until_s
        if isinstance(event, Resumed):
            self.paused_until_s = -inf
        if isinstance(event, Reading) and event.idle_s is None:
            self.last_input_s = event.now_s
        if isinstance(event, Reading) and event.idle_s is not None and 0 <= event.idle_s < 0.25:
            self.last_input_s = event.now_s - event.idle_s
        self.owner, told = handle(before, event)
        self.note(told)
        self.never(before)

    def never(self, before: Owner) -> None:
        owner = self.owner
        if owner.state.takes_work:
            assert owner.engine is EnginePhase.ON
            assert not owner.draining
            assert self.now_s >= self.paused_until_s
            assert away_reason(owner, self.now_s) is None
            if owner.policy.owned:
                assert owner.sight is not None
                assert owner.sight.problem == ""
                assert self.now_s - owner.sight.read_s <= owner.policy.sensor_stale_s
                idle_s = owner.sight.read_s - self.last_input_s
                assert idle_s >= min(owner.policy.idle_s, required_idle_s(owner, self.now_s)) - 1e-6
        if owner.state is NodeState.OWNER:
            assert owner.engine is EnginePhase.OFF
            assert not self.wanted
        if owner.engine is EnginePhase.STARTING:
            assert self.wanted
        assert owner.attempts >= 0
        assert len(owner.yields_s) <= owner.policy.flaps
        assert owner.cooldown_s <= owner.policy.cooldown_s_max
        assert owner.state in TABLE
        if before.state.takes_work and owner.state in (NodeState.OWNER,):
            raise AssertionError("a node must yield before its owner has it")


STEPS = st.sampled_from(
    ["touch", "still", "still", "still", "jump", "negative", "nan", "half", "blind", "attempt", "ended",
     "started", "gone", "memory", "pause", "pause 5", "resume", "drain", "undrain", "tick", "silence"]
)  # fmt: skip


@given(st.booleans(), st.lists(st.tuples(STEPS, st.floats(0.05, 40.0)), max_size=120))
@settings(max_examples=300, deadline=None)
def test_work_is_never_taken_while_the_owner_comes_first(owned: bool, steps: list[tuple[str, float]]) -> None:
    fleet = Fleet(replace(POLICY, idle_s=20.0, cooldown_s=10.0) if owned else SERVER)
    truth_s = 0.0
    for step, gap_s in [("still", 0.25), ("started", 0.25), *steps]:
        gap_s = gap_s if step in ("still", "silence", "tick") else min(gap_s, 0.25)
        fleet.now_s += gap_s
        now_s = fleet.now_s
        if step == "touch":
            truth_s = now_s
        idle_s = now_s - truth_s
        readings = {
            "touch": 0.0,
            "still": idle_s,
            "jump": 2 * idle_s + 60,
            "negative": -1.0,
            "nan": nan,
            "half": idle_s / 2,
            "blind": None,
        }
        others: dict[str, OwnerEvent] = {
            "attempt": AttemptStarted(now_s),
            "ended": AttemptEnded(now_s),
            "started": EngineStarted(now_s),
            "gone": EngineStopped(now_s),
            "memory": MemoryIsBack(now_s),
            "pause": Paused(now_s, inf),
            "pause 5": Paused(now_s, now_s + 5.0),
            "resume": Resumed(now_s),
            "drain": DrainAsked(now_s, drain=True),
            "undrain": DrainAsked(now_s, drain=False),
        }
        if step == "started" and not fleet.wanted:
            continue
        if step in readings:
            fleet.send(Reading(now_s, readings[step]))
        elif step in others:
            fleet.send(others[step])
        fleet.send(Tick(now_s))


@given(st.integers(0, 3), st.lists(st.floats(0.05, 0.25), min_size=80, max_size=200))
@settings(max_examples=100, deadline=None)
def test_every_yield_ends_when_the_engine_obeys(attempts: int, gaps: list[float]) -> None:
    fleet = Fleet(POLICY)
    fleet.send(Reading(fleet.now_s, 900.0))
    fleet.send(EngineStarted(fleet.now_s))
    for _ in range(attempts):
        fleet.send(AttemptStarted(fleet.now_s))
    assert fleet.owner.state.takes_work
    touched_s = fleet.now_s = fleet.now_s + 0.25
    fleet.send(Reading(fleet.now_s, 0.0))
    for gap_s in gaps:
        fleet.now_s += gap_s
        fleet.send(Reading(fleet.now_s, fleet.now_s - touched_s))
        if not fleet.wanted and fleet.owner.engine is EnginePhase.STOPPING:
            fleet.send(EngineStopped(fleet.now_s))
        if fleet.owner.engine is EnginePhase.CHECKING:
            fleet.send(MemoryIsBack(fleet.now_s))
        fleet.send(Tick(fleet.now_s))
        if fleet.owner.state is NodeState.OWNER:
            assert fleet.now_s - touched_s <= 2.0 + 3 * 0.25
            return
    raise AssertionError("the yield did not end")
