"""Random walks of a machine with all its sensors, and every state with every event."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from panal.core.nodes import NodeClass, NodeState
from panal.core.settings import OwnerSettings
from panal.policy import owner_values as values
from panal.policy.owner import begin, handle
from panal.policy.owner_judgement import away_reason
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
    Resumed,
    Sharing,
    StartEngine,
    StopEngine,
    Tick,
    policy_for,
)
from panal.policy.sight import Sight
from panal.policy.signs import BusChanged, GpuUse, People, Signs, Wanted

NOW = 50_000.0
STATES = [state for state in NodeState if state is not NodeState.DEGRADED]  # DEGRADED is the agent's word
SHORT = replace(
    policy_for(NodeClass.WORKSTATION, OwnerSettings()),
    sharing=Sharing.STRICT, idle_s=20.0, cooldown_s=10.0, nobody_s=5.0, locked_s=8.0, gpu_free_s=5.0,
    warm_s_max=30.0, cooldown_s_max=80.0, bus_unload_s=30.0, unload_s=60.0, keep_model_s=15.0,
)  # fmt: skip
POLICIES = {
    "strict": SHORT,
    "polite": replace(SHORT, sharing=Sharing.POLITE),
    "share": replace(SHORT, sharing=Sharing.SHARE),
    "server": replace(policy_for(NodeClass.DEDICATED, OwnerSettings()), warm_s_max=30.0, bus_unload_s=30.0),
}

EVENTS: dict[str, OwnerEvent] = {
    "touch": Reading(NOW, 0.0),
    "blind": Reading(NOW, None, "broken"),
    "start": AttemptStarted(NOW),
    "end": AttemptEnded(NOW),
    "engine": EngineStarted(NOW),
    "gone": EngineStopped(NOW),
    "memory": MemoryIsBack(NOW),
    "pause": Paused(NOW, inf),
    "resume": Resumed(NOW),
    "drain": DrainAsked(NOW, drain=True),
    "undrain": DrainAsked(NOW, drain=False),
    "policy": PolicyChanged(NOW, POLICIES["server"]),
    "offline": BusChanged(NOW, connected=False),
    "online": BusChanged(NOW, connected=True),
    "wanted": Wanted(NOW),
    "foreign": GpuUse(NOW, foreign=True),
    "gpu blind": GpuUse(NOW, foreign=None),
    "no gpu": GpuUse(NOW, foreign=False, there=False),
    "hot": GpuUse(NOW, foreign=False, hot=True),
    "locked": Signs(NOW, people=People.LOCKED),
    "busy": Signs(NOW, busy=True),
    "battery": Signs(NOW, on_battery=True),
    "sleep": Signs(NOW, leaving=True),
    "hours": Signs(NOW, in_hours=False),
    "disk": Signs(NOW, disk_short=True),
    "limit": Signs(NOW, over_limit=True),
    "tick": Tick(NOW),
}
ENDS_WORK = {"touch", "blind", "pause", "drain", "foreign", "gpu blind", "busy", "battery", "sleep", "hours",
             "limit"}  # fmt: skip


def in_state(state: NodeState, phase: EnginePhase, attempts: int) -> Owner:
    sight = Sight(NOW - 0.25, NOW - 900.0, NOW - 900.0)
    busy = state in (NodeState.OWNER, NodeState.YIELDING, NodeState.SUSPENDED)
    return Owner(
        POLICIES["strict"],
        state,
        "" if state.takes_work else values.IN_USE,
        engine=phase,
        attempts=attempts,
        sight=sight,
        signs=Signs(NOW - 0.25, people=People.HERE, memory_free_share=0.9),
        active=busy,
        draining=state is NodeState.DRAINING,
        asked_s=NOW - 1.0,
        suspended_from_s=NOW - 1.0,
        leaving_from_s=NOW - 0.5,
        handed_over_s=NOW - 0.5 if busy else inf,
        cooldown_s=10.0,
    )


@pytest.mark.parametrize("name", list(EVENTS))
@pytest.mark.parametrize("state", STATES)
def test_every_state_has_an_answer_to_every_event(state: NodeState, name: str) -> None:
    for phase in [EnginePhase.ON] if state.takes_work else EnginePhase:
        for attempts in (0, 2):
            before = in_state(state, phase, attempts)
            after, told = handle(before, EVENTS[name])
            assert after.state in STATES
            assert bool(after.reason) != after.state.takes_work
            if after.state.takes_work:
                assert after.engine is EnginePhase.ON
                assert away_reason(after, NOW) is None
                assert name not in ENDS_WORK
            if state.takes_work and not after.state.takes_work:
                handed = any(isinstance(one, HandOverAll) for one in told) or not before.attempts
                assert handed or after.state is NodeState.DRAINING or name == "gone"
            if after.state is NodeState.STARTING and before.state is not NodeState.STARTING:
                assert StartEngine() in told
            if after.engine is EnginePhase.OFF:
                assert after.state is not NodeState.SUSPENDED


class World:
    """The truth, the sensors that tell it or fail, and an engine that obeys when ``obedient``."""

    def __init__(self, policy: OwnerPolicy) -> None:
        self.now_s = NOW
        self.touched_s = NOW - 1000.0
        self.signs = Signs(NOW, people=People.HERE, memory_free_share=0.9)
        self.gpu: GpuUse | None = None
        self.blind = False
        self.obedient = True
        self.owner_at_work_s = inf
        """Since when the owner is unmistakably there."""
        self.owner, told = begin(policy, NOW)
        self.obey(told)

    def obey(self, told: list[OwnerInstruction]) -> None:
        for one in told:
            if not self.obedient:
                return
            if isinstance(one, StartEngine):
                self.send(EngineStarted(self.now_s))
            elif (isinstance(one, HandOverAll) and one.grace_s == 0.0) or isinstance(one, StopEngine):
                while self.owner.attempts:
                    self.send(AttemptEnded(self.now_s))
                if isinstance(one, StopEngine):
                    self.send(EngineStopped(self.now_s))
            elif isinstance(one, CheckMemory):
                self.send(MemoryIsBack(self.now_s))

    def send(self, event: OwnerEvent) -> None:
        self.owner, told = handle(self.owner, event)
        self.check()
        self.obey(told)

    def look(self, gap_s: float = 0.25) -> None:
        self.now_s += gap_s
        self.send(replace(self.signs, now_s=self.now_s))
        if self.gpu is not None:
            self.send(replace(self.gpu, now_s=self.now_s))
        idle_s = None if self.blind else self.now_s - self.touched_s
        self.send(Reading(self.now_s, idle_s, "broken" if self.blind else ""))
        self.send(Tick(self.now_s))
        policy = self.owner.policy
        if self.owner.state.takes_work and policy.sharing is Sharing.STRICT and policy.owned:
            untouched_s = self.now_s - self.touched_s
            assert untouched_s >= min(policy.idle_s, policy.nobody_s, policy.locked_s) - 0.3

    def check(self) -> None:
        owner, policy, signs = self.owner, self.owner.policy, self.owner.signs
        assert len(owner.yields_s) <= policy.flaps
        assert owner.cooldown_s <= max(policy.cooldown_s_max, policy.cooldown_s)
        if owner.state is NodeState.SUSPENDED:
            assert owner.engine is EnginePhase.ON
            assert self.now_s - owner.suspended_from_s <= policy.keep_model_s + 0.25
        if not owner.state.takes_work:
            return
        assert owner.engine is EnginePhase.ON
        assert self.now_s >= owner.paused_until_s
        assert not owner.draining
        if signs is not None:
            assert not signs.leaving
            assert signs.in_hours
            assert not signs.over_limit
            if policy.owned:
                assert signs.busy is False
                assert signs.on_battery is False
        if policy.owned and owner.gpu is not None:
            assert owner.gpu.foreign is False

    def all_well(self) -> None:
        self.obedient, self.blind = True, False
        self.signs = Signs(self.now_s, people=People.HERE, memory_free_share=0.9)
        if self.gpu is not None:
            self.gpu = GpuUse(self.now_s, foreign=False, hot=False, memory_free_share=0.9)
        for event in (Resumed(self.now_s), DrainAsked(self.now_s, drain=False),
                      BusChanged(self.now_s, connected=True), Wanted(self.now_s)):  # fmt: skip
            self.send(event)


STEPS = st.sampled_from(
    ["touch", "look", "look", "look", "look", "long", "attempt", "ended", "here", "locked", "nobody",
     "unknown", "busy", "busy?", "calm", "battery", "mains", "sleep", "wake", "hours", "limit", "disk", "ok",
     "foreign", "gpu?", "gpu free", "hot", "cool", "blind", "seeing", "pause", "resume", "drain", "undrain",
     "offline", "online", "disobedient", "obedient", "engine dies", "wanted", "low memory", "ssh"]
)  # fmt: skip
SIGNS: dict[str, dict[str, object]] = {
    "here": {"people": People.HERE}, "locked": {"people": People.LOCKED}, "nobody": {"people": People.NOBODY},
    "unknown": {"people": People.UNKNOWN}, "busy": {"busy": True}, "busy?": {"busy": None},
    "calm": {"busy": False}, "battery": {"on_battery": True}, "mains": {"on_battery": False},
    "sleep": {"leaving": True}, "wake": {"leaving": False}, "hours": {"in_hours": False},
    "limit": {"over_limit": True}, "disk": {"disk_short": True}, "low memory": {"memory_free_share": 0.2},
    "ssh": {"remote_idle_s": 0.0},
    "ok": {"in_hours": True, "over_limit": False, "disk_short": False, "memory_free_share": 0.9},
}  # fmt: skip
GPU: dict[str, dict[str, object]] = {
    "foreign": {"foreign": True}, "gpu?": {"foreign": None}, "gpu free": {"foreign": False},
    "hot": {"hot": True}, "cool": {"hot": False},
}  # fmt: skip


def take(world: World, step: str) -> None:
    now_s = world.now_s
    events: dict[str, OwnerEvent] = {
        "attempt": AttemptStarted(now_s), "ended": AttemptEnded(now_s), "pause": Paused(now_s, now_s + 20.0),
        "resume": Resumed(now_s), "drain": DrainAsked(now_s, drain=True),
        "undrain": DrainAsked(now_s, drain=False), "offline": BusChanged(now_s, connected=False),
        "online": BusChanged(now_s, connected=True), "wanted": Wanted(now_s),
    }  # fmt: skip
    if step == "touch":
        world.touched_s = now_s
    elif step in SIGNS:
        world.signs = replace(world.signs, **SIGNS[step])  # type: ignore[arg-type]
    elif step in GPU:
        base = world.gpu or GpuUse(now_s, foreign=False, hot=False, memory_free_share=0.9)
        world.gpu = replace(base, **GPU[step])  # type: ignore[arg-type]
    elif step in ("blind", "seeing"):
        world.blind = step == "blind"
    elif step in ("disobedient", "obedient"):
        world.obedient = step == "obedient"
    elif step == "attempt" and not world.owner.state.takes_work:
        return
    elif step == "engine dies":
        if world.owner.engine in (EnginePhase.ON, EnginePhase.STARTING):
            world.send(EngineStopped(now_s))
    elif step == "long":
        for _ in range(40):
            world.look(1.0)
        return
    elif step in events:
        world.send(events[step])
    world.look()


WALKS = st.lists(STEPS, max_size=60)


@given(st.sampled_from(sorted(POLICIES)), WALKS)
@settings(max_examples=300, deadline=None)
def test_no_walk_serves_where_something_comes_first_and_none_ends_in_a_trap(
    name: str, walk: list[str]
) -> None:
    world = World(POLICIES[name])
    for step in walk:
        take(world, step)
    world.all_well()
    begun_s = world.now_s
    while not world.owner.state.takes_work:
        # An engine that disobeyed is told again each engine_stop_s, a memory is checked at each tick.
        if world.owner.engine is EnginePhase.STOPPING:
            world.send(EngineStopped(world.now_s))
        if world.owner.engine is EnginePhase.STARTING and world.owner.state is NodeState.STARTING:
            world.send(EngineStarted(world.now_s))
        world.look(1.0)
        waited_s = world.now_s - begun_s
        assert waited_s < 400.0, f"a trap: {world.owner.state} {world.owner.reason}"


@given(WALKS, st.booleans())
@settings(max_examples=200, deadline=None)
def test_an_owner_at_work_is_never_served_around_for_longer_than_the_grace(
    walk: list[str], may_keep: bool
) -> None:
    policy = POLICIES["strict"] if may_keep else replace(POLICIES["strict"], keep_model_s=0.0)
    world = World(policy)
    for step in walk:
        take(world, step)
    world.obedient, world.blind = True, False
    begun_s = world.now_s
    while world.now_s - begun_s < 30.0:
        world.touched_s = world.now_s + 0.25
        world.look()
        working_s = world.now_s - begun_s
        assert not world.owner.state.takes_work
        # An attempt has the grace, an engine that disobeyed before one more time to be killed.
        if world.owner.engine is EnginePhase.STOPPING:
            world.send(EngineStopped(world.now_s))
        if working_s > policy.grace_s + 0.5 and not world.owner.draining:
            assert world.owner.attempts == 0 or world.owner.engine is not EnginePhase.ON
        late = working_s > policy.grace_s + policy.engine_stop_s + 1.0
        if late and world.owner.state is not NodeState.DRAINING:
            kept = world.owner.state is NodeState.SUSPENDED
            assert world.owner.engine in (EnginePhase.OFF, EnginePhase.CHECKING) or kept
