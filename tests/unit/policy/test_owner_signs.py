"""What ends work beside input, and what lets it begin: each line of the policy as a case."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import pytest

from panal.core.nodes import NodeClass, NodeState
from panal.core.settings import OwnerSettings
from panal.policy import owner_values as values
from panal.policy.owner import begin, handle
from panal.policy.owner_state import Owner
from panal.policy.owner_values import (
    AttemptEnded,
    AttemptStarted,
    EngineStarted,
    EngineStopped,
    HandOverAll,
    LimitSlots,
    MemoryIsBack,
    OwnerEvent,
    OwnerInstruction,
    OwnerPolicy,
    Paused,
    Reading,
    Sharing,
    StartEngine,
    StopEngine,
    StopTakingWork,
    Tick,
    policy_for,
)
from panal.policy.signs import BusChanged, GpuUse, People, Signs, Wanted


def policy(node_class: NodeClass, **overrides: object) -> OwnerPolicy:
    return replace(policy_for(node_class, OwnerSettings()), **overrides)  # type: ignore[arg-type]


@dataclass
class Desk:
    """A machine whose sensors all answer at each look; an obedient engine."""

    policy: OwnerPolicy
    now_s: float = 10_000.0
    idle_s: float | None = 7200.0
    signs: Signs = field(default_factory=lambda: Signs(0.0, people=People.HERE))
    gpu: GpuUse | None = None
    owner: Owner = field(init=False)
    done: list[OwnerInstruction] = field(default_factory=list)
    obedient: bool = True

    def __post_init__(self) -> None:
        self.owner, told = begin(self.policy, self.now_s)
        self._did(told)

    def send(self, event: OwnerEvent) -> list[OwnerInstruction]:
        self.owner, told = handle(self.owner, event)
        self._did(told)
        return told

    def _did(self, told: list[OwnerInstruction]) -> None:
        self.done += told
        for one in told if self.obedient else ():
            if isinstance(one, StartEngine):
                self.send(EngineStarted(self.now_s))
            elif isinstance(one, StopEngine):
                for _ in range(self.owner.attempts):
                    self.send(AttemptEnded(self.now_s))
                self.send(EngineStopped(self.now_s))
                self.send(MemoryIsBack(self.now_s))

    def look(self, seconds: float = 0.25, *, touch: bool = False) -> None:
        self.now_s += seconds
        if self.idle_s is not None:
            self.idle_s = 0.0 if touch else self.idle_s + seconds
        if self.signs.remote_idle_s is not None:
            self.see(remote_idle_s=self.signs.remote_idle_s + seconds)
        self.send(replace(self.signs, now_s=self.now_s))
        if self.gpu is not None:
            self.send(replace(self.gpu, now_s=self.now_s))
        problem = "" if self.idle_s is not None else "no session"
        self.send(Reading(self.now_s, self.idle_s, problem))
        self.send(Tick(self.now_s))

    def look_for(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.look(1.0)

    def see(self, **signs: object) -> None:
        self.signs = replace(self.signs, **signs)  # type: ignore[arg-type]

    @property
    def state(self) -> NodeState:
        return self.owner.state

    def serving(self) -> "Desk":
        self.look_for(120)
        assert self.state is NodeState.AVAILABLE, self.owner.reason
        self.send(AttemptStarted(self.now_s))
        self.done.clear()
        return self

    def seconds_until(self, true: Callable[[], bool], at_most_s: float, step_s: float = 0.25) -> float:
        begun_s = self.now_s
        while not true():
            assert self.now_s - begun_s <= at_most_s, f"{self.state} {self.owner.reason}"
            self.look(step_s)
        return self.now_s - begun_s


OWNED = [NodeClass.WORKSTATION, NodeClass.DESKTOP, NodeClass.LAPTOP]
EVERY = list(NodeClass)
FREE = GpuUse(0.0, foreign=False, hot=False, memory_free_share=0.9)


# --- into work ---------------------------------------------------------------------------------------

ENTRIES = [
    # class, what is seen, seconds without a trace that are needed
    (NodeClass.DESKTOP, People.HERE, 900.0),
    (NodeClass.DESKTOP, People.LOCKED, 180.0),
    (NodeClass.DESKTOP, People.NOBODY, 60.0),
    (NodeClass.LAPTOP, People.HERE, 900.0),
    (NodeClass.LAPTOP, People.LOCKED, 180.0),
    (NodeClass.LAPTOP, People.NOBODY, 60.0),
    (NodeClass.WORKSTATION, People.HERE, 300.0),
    (NodeClass.WORKSTATION, People.LOCKED, 60.0),
    (NodeClass.WORKSTATION, People.NOBODY, 60.0),
    (NodeClass.DEDICATED, People.HERE, 0.0),
]


@pytest.mark.parametrize(("node_class", "people", "wait_s"), ENTRIES)
@pytest.mark.parametrize("blind", [False, True], ids=["input seen", "input not seen"])
def test_a_node_starts_after_its_time_and_not_before(
    node_class: NodeClass, people: People, wait_s: float, blind: bool
) -> None:
    desk = Desk(policy(node_class), idle_s=None if blind else 0.0)
    desk.see(people=people)
    if blind and people is People.HERE and node_class.owned:
        desk.look_for(2000)
        assert (desk.state, desk.owner.reason) == (NodeState.OWNER, values.UNKNOWN)
        return
    took_s = desk.seconds_until(lambda: desk.state is NodeState.AVAILABLE, wait_s + 3.0, 1.0)
    assert took_s >= wait_s - 1.0


def test_share_starts_at_once_where_the_gpu_is_free_and_seen() -> None:
    desk = Desk(policy(NodeClass.WORKSTATION, sharing=Sharing.SHARE), idle_s=0.0, gpu=FREE)
    desk.seconds_until(lambda: desk.state is NodeState.AVAILABLE, 63.0)
    unseen = Desk(policy(NodeClass.WORKSTATION, sharing=Sharing.SHARE), idle_s=0.0)
    unseen.look_for(200)
    assert unseen.owner.reason == values.IN_USE, "without a look at the GPU its owner's input counts"


BARS = [
    ("on_battery", True, values.BATTERY, OWNED),
    ("on_battery", None, values.UNKNOWN, OWNED),
    ("busy", True, values.IN_USE, OWNED),
    ("busy", None, values.UNKNOWN, OWNED),
    ("in_hours", False, values.HOURS, EVERY),
    ("leaving", True, values.SLEEP, EVERY),
    ("over_limit", True, values.LIMIT, EVERY),
    ("disk_short", True, values.DISK, EVERY),
]
CASES = [(node_class, name, value, reason) for name, value, reason, classes in BARS for node_class in classes]


@pytest.mark.parametrize(("node_class", "name", "value", "reason"), CASES)
def test_what_stands_against_a_start(node_class: NodeClass, name: str, value: object, reason: str) -> None:
    desk = Desk(policy(node_class))
    # A server has begun to start before its sensors spoke: it is put back to where it was before.
    off = values.EnginePhase.OFF
    bad = replace(desk.signs, now_s=desk.now_s, **{name: value})  # type: ignore[arg-type]
    desk.owner = replace(desk.owner, state=NodeState.OWNER, engine=off, signs=bad)
    desk.done.clear()
    desk.see(**{name: value})
    desk.look_for(1000)
    assert (desk.state, desk.owner.reason) == (NodeState.OWNER, reason)
    assert StartEngine() not in desk.done
    desk.signs = Signs(0.0, people=People.HERE)
    desk.seconds_until(lambda: desk.state is NodeState.AVAILABLE, 1000.0, 1.0)


@pytest.mark.parametrize(
    ("node_class", "name", "value", "reason"), [c for c in CASES if c[1] != "disk_short"]
)
def test_what_ends_work_within_one_look(node_class: NodeClass, name: str, value: object, reason: str) -> None:
    desk = Desk(policy(node_class)).serving()
    desk.see(**{name: value})
    desk.look(0.25)
    assert desk.done[0] == StopTakingWork(reason)
    assert desk.done[1] == HandOverAll(2.0)
    assert desk.state is NodeState.YIELDING
    took_s = desk.seconds_until(lambda: desk.owner.engine is values.EnginePhase.OFF, 10.0)
    assert took_s <= 2.25
    assert desk.owner.reason == reason


def test_a_full_disk_ends_no_work_that_runs() -> None:
    desk = Desk(policy(NodeClass.DESKTOP)).serving()
    desk.see(disk_short=True)
    desk.look_for(100)
    assert desk.state is NodeState.SERVING


def test_a_server_on_its_battery_is_drained() -> None:
    desk = Desk(policy(NodeClass.DEDICATED)).serving()
    desk.see(on_battery=True)
    desk.look()
    assert (desk.state, desk.owner.reason) == (NodeState.DRAINING, values.BATTERY)
    assert desk.done[0] == StopTakingWork(values.BATTERY)
    desk.send(AttemptEnded(desk.now_s))
    assert desk.owner.engine is values.EnginePhase.OFF
    desk.see(on_battery=False)
    desk.seconds_until(lambda: desk.state is NodeState.AVAILABLE, 1.0)


def test_a_battery_is_no_reason_where_the_owner_says_so() -> None:
    desk = Desk(policy(NodeClass.LAPTOP, work_on_battery=True)).serving()
    desk.see(on_battery=True)
    desk.look_for(10)
    assert desk.state is NodeState.SERVING


@pytest.mark.parametrize("blind", [False, True], ids=["input seen", "input not seen"])
@pytest.mark.parametrize("before", [People.LOCKED, People.NOBODY])
def test_unlock_and_login_end_work_at_once_also_where_input_says_nothing(before: People, blind: bool) -> None:
    desk = Desk(policy(NodeClass.DESKTOP), idle_s=None if blind else 7200.0)
    desk.see(people=before)
    desk.seconds_until(lambda: desk.state is NodeState.AVAILABLE, 400.0, 1.0)
    desk.send(AttemptStarted(desk.now_s))
    desk.see(people=People.HERE)
    desk.look()
    assert (desk.state, desk.owner.reason) == (
        NodeState.YIELDING,
        values.UNKNOWN if blind else values.IN_USE,
    )


def test_typing_over_ssh_is_a_trace_of_the_owner() -> None:
    desk = Desk(policy(NodeClass.DESKTOP))
    desk.see(remote_idle_s=5000.0)
    desk.serving()
    for _ in range(10):
        desk.look()
    assert desk.state is NodeState.SERVING
    desk.see(remote_idle_s=0.0)
    desk.look()
    assert (desk.state, desk.owner.reason) == (NodeState.YIELDING, values.IN_USE)


def test_a_fresh_ssh_login_ends_work_and_an_old_one_does_not_begin_it_sooner() -> None:
    desk = Desk(policy(NodeClass.DESKTOP)).serving()
    desk.see(remote_idle_s=0.5)
    desk.look()
    assert desk.state is NodeState.YIELDING
    desk.look_for(890)
    assert desk.state is NodeState.OWNER


@pytest.mark.parametrize("node_class", OWNED)
def test_signs_that_fell_silent_are_an_owner_at_work(node_class: NodeClass) -> None:
    desk = Desk(policy(node_class)).serving()
    for _ in range(45):
        desk.now_s += 0.25
        assert desk.idle_s is not None
        desk.idle_s += 0.25
        desk.send(Reading(desk.now_s, desk.idle_s))
        desk.send(Tick(desk.now_s))
    assert not desk.state.takes_work
    assert desk.owner.reason == values.UNKNOWN


# --- the GPU -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("node_class", OWNED)
def test_others_on_the_gpu_end_work_at_once_and_must_be_gone_for_a_minute(node_class: NodeClass) -> None:
    desk = Desk(policy(node_class), gpu=FREE).serving()
    desk.gpu = replace(FREE, foreign=True)
    desk.look()
    assert (desk.state, desk.owner.reason) == (NodeState.YIELDING, values.IN_USE)
    desk.look_for(100)
    desk.gpu = FREE
    back_s = desk.seconds_until(lambda: desk.state is NodeState.AVAILABLE, 1000.0, 1.0)
    assert back_s >= max(60.0, desk.policy.cooldown_s) - 1.0


def test_a_server_looks_at_its_gpu_only_where_its_policy_says_so() -> None:
    desk = Desk(policy(NodeClass.DEDICATED), gpu=replace(FREE, foreign=True)).serving()
    assert desk.state is NodeState.SERVING
    watched = Desk(policy(NodeClass.DEDICATED, gpu_counts=True), gpu=FREE).serving()
    watched.gpu = replace(FREE, foreign=True)
    took_s = watched.seconds_until(lambda: watched.state is NodeState.YIELDING, 6.0)
    assert 4.5 <= took_s <= 5.5


@pytest.mark.parametrize("silent", [False, True])
def test_a_gpu_that_cannot_be_seen_is_an_owner_at_work(silent: bool) -> None:
    desk = Desk(policy(NodeClass.DESKTOP), gpu=FREE).serving()
    desk.gpu = None if silent else replace(FREE, foreign=None)
    desk.look_for(12)
    assert desk.owner.reason == values.UNKNOWN


def test_a_gpu_that_was_not_seen_must_be_seen_free_for_the_whole_minute() -> None:
    desk = Desk(policy(NodeClass.DESKTOP), gpu=replace(FREE, foreign=None))
    desk.look_for(300)
    assert desk.owner.reason == values.UNKNOWN
    desk.gpu = FREE
    took_s = desk.seconds_until(lambda: desk.state is NodeState.AVAILABLE, 100.0, 1.0)
    assert took_s >= 59.0


def test_polite_looks_at_the_gpu_once_it_works_and_strict_at_input() -> None:
    for sharing, state in ((Sharing.POLITE, NodeState.SERVING), (Sharing.STRICT, NodeState.YIELDING)):
        desk = Desk(policy(NodeClass.WORKSTATION, sharing=sharing), gpu=FREE).serving()
        desk.look(touch=True)
        assert desk.state is state
    unseen = Desk(policy(NodeClass.WORKSTATION)).serving()
    unseen.look(touch=True)
    assert unseen.state is NodeState.YIELDING, "where the GPU is not seen, input stands for it"


def test_heat_halves_the_slots_then_ends_work_then_waits() -> None:
    desk = Desk(policy(NodeClass.DEDICATED), gpu=FREE).serving()
    desk.gpu = replace(FREE, hot=True)
    halved_s = desk.seconds_until(lambda: LimitSlots(0.5) in desk.done, 12.0)
    assert 9.5 <= halved_s <= 10.5
    assert desk.state is NodeState.SERVING
    yielded_s = halved_s + desk.seconds_until(lambda: desk.state is NodeState.YIELDING, 35.0)
    assert 39.5 <= yielded_s <= 40.5
    assert desk.owner.reason == values.HOT
    desk.look_for(5)
    assert (desk.state, desk.owner.reason) == (NodeState.OWNER, values.HOT)
    desk.gpu = FREE
    desk.look()
    assert desk.state is NodeState.COOLDOWN
    desk.seconds_until(lambda: desk.state is NodeState.AVAILABLE, 31.0)
    desk.look_for(31)
    assert LimitSlots(1.0) in desk.done


def test_a_moment_of_heat_changes_nothing() -> None:
    desk = Desk(policy(NodeClass.DEDICATED), gpu=FREE).serving()
    for _ in range(20):
        desk.gpu = replace(FREE, hot=True)
        desk.look_for(5)
        desk.gpu = FREE
        desk.look()
    assert not any(isinstance(one, LimitSlots) for one in desk.done)


# --- keeping, resting, cold starts, the bus -----------------------------------------------------------


def keeping(**overrides: object) -> Desk:
    desk = Desk(policy(NodeClass.WORKSTATION, sharing=Sharing.STRICT, keep_model_s=600.0, **overrides))
    desk.see(memory_free_share=0.8)
    return desk.serving()


def test_an_engine_that_may_stay_is_suspended_after_the_hand_over_and_back_without_a_start() -> None:
    desk = keeping()
    desk.look(touch=True)
    assert (desk.state, desk.done[1]) == (NodeState.YIELDING, HandOverAll(2.0))
    desk.send(AttemptEnded(desk.now_s))
    assert (desk.state, desk.owner.reason) == (NodeState.SUSPENDED, values.IN_USE)
    desk.look_for(290)
    assert desk.state is NodeState.SUSPENDED
    desk.done.clear()
    desk.look_for(15)
    assert desk.state is NodeState.AVAILABLE
    assert StartEngine() not in desk.done


ENDS_KEEPING: list[tuple[str, Callable[[Desk], object]]] = [
    ("ten minutes", lambda desk: [desk.look(1.0, touch=True) for _ in range(601)]),
    ("memory needed", lambda desk: (desk.see(memory_free_share=0.4), desk.look())),
    ("a named program", lambda desk: (desk.see(busy=True), desk.look())),
    ("a pause", lambda desk: desk.send(Paused(desk.now_s, inf))),
    ("sleep", lambda desk: (desk.see(leaving=True), desk.look())),
    ("blindness", lambda desk: (setattr(desk, "idle_s", None), desk.look())),
    ("the engine's end", lambda desk: desk.send(EngineStopped(desk.now_s))),
]


@pytest.mark.parametrize("end", [case[1] for case in ENDS_KEEPING], ids=[case[0] for case in ENDS_KEEPING])
def test_what_ends_the_keeping_of_an_engine(end: Callable[[Desk], object]) -> None:
    desk = keeping()
    desk.look(touch=True)
    desk.send(AttemptEnded(desk.now_s))
    assert desk.state is NodeState.SUSPENDED
    desk.done.clear()
    end(desk)
    assert StopEngine(kill=False) in desk.done
    assert desk.state is NodeState.OWNER
    assert desk.owner.engine is values.EnginePhase.OFF


@pytest.mark.parametrize("share", [0.0, 0.49])
def test_no_engine_is_kept_without_half_of_the_memory_free(share: float) -> None:
    desk = keeping()
    desk.see(memory_free_share=share)
    desk.look(touch=True)
    desk.send(AttemptEnded(desk.now_s))
    assert desk.owner.engine is values.EnginePhase.OFF


def test_by_default_no_class_keeps_an_engine_since_the_memory_was_promised() -> None:
    assert {policy(node_class).keep_model_s for node_class in NodeClass} == {0.0}


def test_an_engine_that_nobody_asks_for_is_unloaded_until_somebody_does() -> None:
    desk = Desk(policy(NodeClass.DESKTOP, unload_s=600.0)).serving()
    desk.send(AttemptEnded(desk.now_s))
    desk.look_for(595)
    assert desk.state is NodeState.AVAILABLE
    desk.look_for(10)
    assert (desk.state, desk.owner.reason) == (NodeState.OWNER, values.RESTING)
    desk.look_for(1000)
    assert desk.owner.reason == values.RESTING
    desk.send(Wanted(desk.now_s))
    assert desk.state is NodeState.AVAILABLE
    server = Desk(policy(NodeClass.DEDICATED, unload_s=600.0)).serving()
    server.send(AttemptEnded(server.now_s))
    server.look_for(2000)
    assert server.state is NodeState.AVAILABLE, "only an owned machine rests"


def test_an_engine_that_does_not_become_ready_is_stopped_and_tried_later_and_later() -> None:
    desk = Desk(policy(NodeClass.DESKTOP), obedient=False)
    waits = []
    for _ in range(4):
        desk.seconds_until(lambda: desk.state is NodeState.STARTING, 5000.0, 1.0)
        cold_s = desk.seconds_until(lambda: desk.state is NodeState.YIELDING, 400.0, 1.0)
        assert 299.0 <= cold_s <= 301.0
        desk.send(EngineStopped(desk.now_s))
        desk.send(MemoryIsBack(desk.now_s))
        assert (desk.state, desk.owner.reason) == (NodeState.COOLDOWN, values.COOLING)
        waits.append(desk.seconds_until(lambda: desk.state is NodeState.STARTING, 5000.0, 1.0))
    assert [round(wait / 300) for wait in waits] == [1, 2, 4, 8]


def test_a_wait_yields_to_the_owner_and_to_a_drain() -> None:
    desk = Desk(policy(NodeClass.DESKTOP), obedient=False)
    desk.look()
    desk.owner = replace(
        desk.owner, state=NodeState.COOLDOWN, engine=values.EnginePhase.OFF, not_before_s=inf
    )
    desk.look(touch=True)
    assert (desk.state, desk.owner.reason) == (NodeState.OWNER, values.IN_USE)


@pytest.mark.parametrize(("node_class", "wait_s"), [(NodeClass.DESKTOP, 600), (NodeClass.DEDICATED, 1800)])
def test_without_the_bus_the_engine_goes_after_its_time_and_comes_back_with_it(
    node_class: NodeClass, wait_s: int
) -> None:
    desk = Desk(policy(node_class)).serving()
    desk.send(AttemptEnded(desk.now_s))
    desk.send(BusChanged(desk.now_s, connected=False))
    desk.look_for(wait_s - 5)
    desk.send(BusChanged(desk.now_s, connected=False))
    assert desk.state is NodeState.AVAILABLE
    desk.look_for(10)
    assert (desk.state, desk.owner.reason) == (NodeState.OWNER, values.OFFLINE)
    desk.send(BusChanged(desk.now_s, connected=True))
    assert desk.state is NodeState.AVAILABLE


def test_every_reason_is_coarse_and_free_of_persons_and_times() -> None:
    reasons = {value for name, value in vars(values).items() if name.isupper() and isinstance(value, str)}
    assert reasons == {
        "in use by its owner", "paused by its owner", "idle state unknown", "drained by its operators",
        "giving the machine back", "starting", "on battery", "about to sleep", "too hot",
        "outside its hours", "short of disk space", "over its owner's limit", "no connection", "resting",
        "the engine did not become ready", "waiting before it starts again",
    }  # fmt: skip


def test_a_large_model_may_load_on_a_machine_without_an_owner_for_as_long_as_it_makes_progress() -> None:
    """How long a load may stand still is judged where it is seen: node/engines/loading.py."""
    owner, told = begin(policy(NodeClass.DEDICATED), 0.0)
    for minute in range(60):
        owner, more = handle(owner, Tick(60.0 * minute))
        told = [*told, *more]
    assert owner.state is NodeState.STARTING
    assert any(isinstance(each, StartEngine) for each in told)
    assert not any(isinstance(each, StopEngine) for each in told)


def test_a_machine_that_turns_out_to_have_no_gpu_is_judged_without_one() -> None:
    """Before the first look nothing was known: that must not stand for ever."""
    desk = Desk(policy(NodeClass.DESKTOP), gpu=replace(FREE, foreign=None))
    desk.look_for(120)
    assert (desk.state, desk.owner.reason) == (NodeState.OWNER, values.UNKNOWN)
    desk.gpu = GpuUse(0.0, foreign=False, there=False)
    desk.look()
    assert desk.state is NodeState.AVAILABLE, "and it does not wait as after somebody else's use"
