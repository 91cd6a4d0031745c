"""What the owner's machine hears of the GPUs, and when the desktop's own use is learnt."""

from collections.abc import Callable
from pathlib import Path

import pytest

from panal.core.clock import ManualClock
from panal.core.gpus import GIB, GpuProcess, GpuReading
from panal.core.nodes import NodeClass, NodeState
from panal.core.settings import OwnerSettings
from panal.node.desk import Desk as DeskFiles
from panal.node.hardware.gpu_watch import PolledGpus
from panal.node.hardware.idle import Idle
from panal.node.hardware.memory import EngineMemory
from panal.node.hardware.owner_gpu import OwnerGpu
from panal.node.hardware.owner_watch import OwnerWatch
from panal.node.hardware.senses import Senses
from panal.node.hardware.surroundings import Place
from panal.policy.desk_limits import Limits
from panal.policy.owner_values import UNKNOWN, policy_for
from panal.policy.signs import GpuUse
from tests.support.gpus import OTHER, HandClock, gpu, reading
from tests.unit.node.test_idle_watch import Work

FOREIGN = (GpuProcess(pid=77, computes=True, memory_bytes=4 * GIB),)


class Driver:
    """A probe whose next reading is set by the test."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.next: Callable[[float], GpuReading] = lambda at_s: reading(gpu(), at_s=at_s)

    async def read(self, own: frozenset[int]) -> GpuReading:
        del own
        return self.next(self.clock.now_s)

    def close(self) -> None: ...


class Desk:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.driver = Driver(self.clock)
        self.watch = PolledGpus(self.driver, self.clock)
        self.gpu = OwnerGpu(self.watch, self.clock)

    async def look(self, times: int = 1) -> GpuUse | None:
        for _ in range(times):
            self.clock.now_s += 1.0
            await self.watch.look()
        return self.gpu.read()


async def test_before_the_first_look_nothing_is_known() -> None:
    use = Desk().gpu.read()
    assert use is not None
    assert (use.foreign, use.hot, use.memory_free_share) == (None, None, None)


async def test_a_machine_without_a_driver_has_no_accelerator() -> None:
    desk = Desk()
    desk.driver.next = lambda at_s: reading(at_s=at_s, no_driver=True)
    assert await desk.look() is None
    assert desk.gpu.words() == {}


async def test_a_free_card_is_told_with_its_room() -> None:
    desk = Desk()
    use = await desk.look(3)
    assert use is not None
    assert (use.foreign, use.hot) == (False, False)
    assert use.memory_free_share == 23.5 / 24
    assert desk.gpu.words() == {"GPU 1, NVIDIA Test": "23.5 of 24.0 GiB free"}


async def test_two_cards_of_one_name_are_two_cards() -> None:
    desk = Desk()
    desk.driver.next = lambda at_s: reading(gpu(), gpu(OTHER, used_gib=12.0), at_s=at_s)
    use = await desk.look(3)
    assert len(desk.gpu.words()) == 2
    assert use is not None and use.memory_free_share == 0.5, "of the card with the least room"


async def test_somebody_elses_work_is_foreign() -> None:
    desk = Desk()
    await desk.look(3)
    desk.driver.next = lambda at_s: reading(gpu(used_gib=4.5, processes=FOREIGN), at_s=at_s)
    use = await desk.look(3)
    assert use is not None and use.foreign is True


async def test_a_driver_that_falls_silent_is_unknown_and_not_free() -> None:
    desk = Desk()
    await desk.look(3)
    desk.clock.now_s += 60.0
    use = desk.gpu.read()
    assert use is not None and use.foreign is None


@pytest.mark.parametrize("away", [True, False])
async def test_the_desktop_is_learnt_only_while_its_owner_is_away(away: bool) -> None:
    desk = Desk()
    desk.gpu.let_learn(away)
    desk.driver.next = lambda at_s: reading(gpu(used_gib=2.0), at_s=at_s)
    await desk.look(5)
    desk.gpu.let_learn(False)
    desk.driver.next = lambda at_s: reading(gpu(used_gib=2.8), at_s=at_s)
    use = await desk.look(5)
    assert use is not None and use.foreign is not away


def test_an_agent_cannot_cap_the_power_and_says_so() -> None:
    gpu_of_desk = Desk().gpu
    assert gpu_of_desk.limit(None) == ""
    assert "cannot" in gpu_of_desk.limit(150.0)


async def test_a_desk_without_a_gpu_becomes_free_although_nobody_knew_at_its_first_look(
    tmp_path: Path,
) -> None:
    desk = Desk()
    desk.driver.next = lambda at_s: reading(at_s=at_s, no_driver=True)
    place = Place("linux", {}, True, tmp_path, 0, 0, None)
    clock = ManualClock()
    senses = Senses(place, clock, Limits, EngineMemory(), desk.gpu)
    policy = policy_for(NodeClass.DESKTOP, OwnerSettings(idle_s=60.0))
    watch = OwnerWatch(
        policy, Untouched(clock), DeskFiles(tmp_path, clock), EngineMemory(), clock, senses=senses
    )
    watch.attach(Work())
    watch.look()
    assert watch.reason == UNKNOWN
    await desk.watch.look()
    for _ in range(300):
        clock.advance(0.25)
        watch.look()
    assert watch.reason != UNKNOWN
    assert watch.state in (NodeState.STARTING, NodeState.AVAILABLE)


class Untouched:
    """Nobody has touched the machine since two hours before the test."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def read(self) -> Idle:
        return Idle(7200.0 + self._clock.monotonic_seconds())

    def close(self) -> None: ...
