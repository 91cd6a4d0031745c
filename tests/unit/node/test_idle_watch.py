"""OwnerWatch with a clock moved by hand: what it orders, reports and writes down."""

import asyncio
from pathlib import Path

import pytest

from panal.core.clock import ManualClock
from panal.core.nodes import NodeClass, NodeState
from panal.core.settings import OwnerSettings
from panal.node.availability import Availability
from panal.node.desk import Desk
from panal.node.hardware.idle import Idle, Unknown
from panal.node.hardware.memory import EngineMemory
from panal.node.hardware.owner_watch import OwnerWatch
from panal.policy.owner_values import policy_for
from panal.protocol.messages import YieldReport


class Keyboard:
    """A sensor that tells the truth about ``touched_s``, or what ``answer`` says."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.touched_s = clock.monotonic_seconds() - 7200
        self.answer: Idle | Unknown | Exception | None = None
        self.closed = False

    def read(self) -> Idle | Unknown:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or Idle(self.clock.monotonic_seconds() - self.touched_s)

    def close(self) -> None:
        self.closed = True


class Work:
    """An agent that writes down its orders; ``obedient`` ends engine and attempts at once."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        self.reports: list[YieldReport] = []
        self.watch: OwnerWatch | None = None
        self.obedient = True
        self.attempts = 0

    def hand_over(self, grace_s: float) -> None:
        self.orders.append(f"hand over {grace_s:g}")

    def start_engine(self) -> None:
        self.orders.append("start")
        if self.watch is not None:
            self.watch.engine_started()

    def stop_engine(self, *, kill: bool) -> None:
        self.orders.append("kill" if kill else "stop")
        if self.obedient and self.watch is not None:
            self.watch.engine_stopped()

    def state_changed(self) -> None:
        self.orders.append("changed")

    def engine_process_ids(self) -> frozenset[int]:
        return frozenset()

    def yielded(self, report: YieldReport) -> None:
        self.reports.append(report)


class Card:
    used: int | None = 0

    def used_bytes(self, pids: object) -> int | None:
        return self.used


class Machine:
    def __init__(self, home: Path, node_class: NodeClass = NodeClass.DESKTOP) -> None:
        self.clock = ManualClock()
        self.keyboard = Keyboard(self.clock)
        self.desk = Desk(home, self.clock)
        self.work = Work()
        self.card = Card()
        policy = policy_for(node_class, OwnerSettings(idle_s=60.0, cooldown_s=60.0))
        self.watch = OwnerWatch(policy, self.keyboard, self.desk, EngineMemory(self.card), self.clock)
        self.watch.attach(self.work)
        self.work.watch = self.watch

    def pass_s(self, seconds: float, step_s: float = 0.25) -> None:
        for _ in range(round(seconds / step_s)):
            self.clock.advance(step_s)
            self.watch.look()

    def touch(self) -> None:
        self.keyboard.touched_s = self.clock.monotonic_seconds()

    def serving(self) -> "Machine":
        self.pass_s(0.25)
        assert self.watch.may_serve() is None
        self.work.orders.clear()
        return self


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_it_is_an_availability(machine: Machine) -> None:
    availability: Availability = machine.watch
    assert availability.may_serve() == "idle state unknown"


def test_a_touch_is_seen_at_the_next_poll_and_measured(machine: Machine) -> None:
    machine.serving()
    machine.watch.attempt_started()
    machine.work.orders.clear()
    machine.touch()
    machine.clock.advance(0.2)
    machine.watch.look()
    assert machine.watch.may_serve() == "in use by its owner"
    assert machine.work.orders[0] == "hand over 2"
    machine.pass_s(0.5)
    assert "stop" not in machine.work.orders
    machine.watch.attempt_ended()
    assert "stop" in machine.work.orders
    (report,) = machine.work.reports
    assert report.no_new_work_s == pytest.approx(0.2)
    assert report.handed_over_s == pytest.approx(0.7)
    assert report.engine_gone_s == pytest.approx(0.7)
    assert report.memory_back_s == pytest.approx(0.7)
    assert report.attempts == 1
    assert machine.watch.state is NodeState.OWNER


def test_an_engine_that_does_not_stop_is_killed(machine: Machine) -> None:
    machine.serving()
    machine.work.obedient = False
    machine.touch()
    machine.pass_s(5)
    orders = [order for order in machine.work.orders if order in ("stop", "kill")]
    assert orders[:3] == ["stop", "kill", "kill"]
    machine.watch.engine_stopped()
    assert machine.watch.state is NodeState.OWNER


def test_memory_that_stays_bars_work_and_is_told_to_the_owner(machine: Machine) -> None:
    machine.serving()
    machine.card.used = 8 * 1024**3
    machine.touch()
    machine.pass_s(100)
    assert machine.watch.state is NodeState.YIELDING
    status = machine.desk.status().status
    assert status is not None
    assert "memory" in status.problem
    machine.card.used = None
    machine.pass_s(1)
    assert machine.watch.state is NodeState.YIELDING
    machine.card.used = 0
    machine.pass_s(0.25)
    assert machine.work.reports[0].memory_back_s > 100


def test_a_pause_from_the_desk_beats_everything(machine: Machine) -> None:
    machine.serving()
    machine.desk.pause()
    machine.pass_s(0.25)
    assert machine.watch.may_serve() == "paused by its owner"
    machine.watch.change_policy(policy_for(NodeClass.DEDICATED, OwnerSettings()))
    machine.watch.drain(on=True)
    machine.watch.drain(on=False)
    machine.pass_s(200)
    assert machine.watch.may_serve() == "paused by its owner"
    machine.desk.resume()
    machine.pass_s(0.5)
    assert machine.watch.may_serve() is None


def test_a_pause_ends_at_its_time_and_is_not_begun_again_by_a_moving_clock(machine: Machine) -> None:
    machine.serving()
    machine.desk.pause(600)
    machine.pass_s(599, step_s=1.0)
    assert machine.watch.may_serve() == "paused by its owner"
    machine.pass_s(3, step_s=1.0)
    assert machine.watch.may_serve() is None


def test_a_broken_sensor_is_an_owner_at_work(machine: Machine) -> None:
    machine.serving()
    machine.keyboard.answer = RuntimeError("bug")
    machine.pass_s(0.25)
    assert machine.watch.may_serve() == "idle state unknown"
    assert "RuntimeError" in machine.watch.problem
    status = machine.desk.status().status
    assert status is not None
    assert "RuntimeError" in status.problem


def test_a_watch_that_has_stopped_looking_serves_no_more(machine: Machine) -> None:
    machine.serving()
    machine.clock.advance(10.5)
    assert machine.watch.may_serve() == "idle state unknown"


def test_a_dedicated_node_never_reads_the_keyboard(tmp_path: Path) -> None:
    machine = Machine(tmp_path, NodeClass.DEDICATED)
    machine.keyboard.answer = RuntimeError("must not be read")
    machine.watch.drain(on=False)
    machine.pass_s(1)
    assert machine.watch.problem == ""


def test_the_status_is_written_each_two_seconds(machine: Machine) -> None:
    machine.serving()
    machine.pass_s(60)
    assert machine.desk.status().age_s <= 2.25


async def test_run_watches_until_it_is_cancelled(machine: Machine) -> None:
    machine.desk.pause()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(machine.watch.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert machine.watch.reason == "paused by its owner"
        assert machine.desk.status().fresh
        task.cancel()
    assert machine.keyboard.closed
