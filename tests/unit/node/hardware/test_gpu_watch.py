"""The watch: what it answers between looks, what it tells of memory, whom it tells of changes."""

import asyncio
from pathlib import Path

import pytest

from panal.core.gpus import MIB, ForeignUse
from panal.node.hardware.gpu_build import gpu_readers
from panal.node.hardware.gpu_fake import FakeNvml
from panal.node.hardware.gpu_reading import GpuProbe
from panal.node.hardware.gpu_watch import PolledGpus
from panal.policy.gpu_use import STALE_S
from tests.support.gpus import CARD, HandClock, HardwareFile, hardware_file

OURS = 4711


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def file(tmp_path: Path) -> HardwareFile:
    return hardware_file(tmp_path)


@pytest.fixture
def gpus(file: HardwareFile, clock: HandClock) -> PolledGpus:
    return PolledGpus(GpuProbe(gpu_readers(FakeNvml(file.path, clock)), clock, deadline_s=20.0), clock)


def holds(file: HardwareFile, memory_mib: int | None = 900) -> None:
    process: dict[str, object] = {"pid": OURS, "kind": "compute"}
    file.cards[0]["process"] = [process if memory_mib is None else process | {"memory_mib": memory_mib}]
    file.write()


async def test_before_the_first_look_all_is_unknown(gpus: PolledGpus) -> None:
    assert gpus.answer().foreign is ForeignUse.UNKNOWN
    assert gpus.used_bytes([]) is None


async def test_changes_are_told_once_and_old_looks_are_unknown(
    gpus: PolledGpus, file: HardwareFile, clock: HandClock
) -> None:
    told: list[ForeignUse] = []
    gpus.changed = lambda: told.append(gpus.answer().foreign)
    await gpus.look()
    await gpus.look()
    holds(file)
    await gpus.look()
    assert told == [ForeignUse.NO, ForeignUse.YES]
    assert gpus.used_by_others() == {CARD}
    clock.now_s += STALE_S + 1
    assert gpus.answer().foreign is ForeignUse.UNKNOWN
    assert gpus.used_bytes([]) is None, "a memory that was read too long ago is not back"


async def test_memory_is_back_only_by_a_look_after_the_end_that_shows_nothing_of_ours(
    gpus: PolledGpus, file: HardwareFile
) -> None:
    gpus.own = lambda: frozenset({OURS})
    holds(file)
    await gpus.look()
    assert gpus.used_bytes([OURS]) == 900 * MIB
    gpus.own = frozenset
    assert gpus.used_bytes([]) is None, "the last look is older than the end"
    await gpus.look()
    assert gpus.used_bytes([]) == 900 * MIB, "the driver still shows a process that is gone"
    file.cards[0]["process"] = []
    file.write()
    await gpus.look()
    assert gpus.used_bytes([]) == 0


async def test_where_programs_are_not_told_apart_all_that_is_used_counts(
    gpus: PolledGpus, file: HardwareFile
) -> None:
    file.cards[0]["used_mib"] = 700
    file.write({"error": "NOT_SUPPORTED", "call": "nvmlDeviceGetComputeRunningProcesses"})
    await gpus.look()
    assert gpus.used_bytes([OURS]) == 700 * MIB
    file.write({"error": "UNKNOWN"})
    await gpus.look()
    assert gpus.used_bytes([]) == 0, "a lost GPU holds nothing that its owner could want back"


async def test_a_machine_without_gpus_holds_nothing_however_old_the_look(
    gpus: PolledGpus, file: HardwareFile, clock: HandClock
) -> None:
    file.write({"error": "DRIVER_NOT_LOADED"})
    assert (await gpus.look()).no_driver
    clock.now_s += 100
    assert gpus.used_bytes([]) == 0


async def test_it_looks_until_it_is_cancelled(gpus: PolledGpus) -> None:
    seen = asyncio.Event()
    gpus.changed = seen.set
    running = asyncio.get_running_loop().create_task(gpus.run())
    async with asyncio.timeout(20):
        await seen.wait()
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
