"""Where an engine goes, what is kept of it, and what a lost GPU means; with the stand-in for NVML."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from panal.core.clock import SystemClock
from panal.core.errors import EngineFailed
from panal.core.gpus import GIB
from panal.core.settings import NodeSettings
from panal.node.calibration import Calibration, CalibrationFile
from panal.node.engine_keeper import EngineKeeper, KeeperEvents
from panal.node.engines.engine import EngineFacts, LoadPostponed
from panal.node.gpus import NodeGpus, PlacedEngine
from panal.node.speeds import MeasuredSpeeds
from tests.support.gpu_nodes import LoadedEngine, gpus_of
from tests.support.gpus import CARD, HardwareFile, hardware_file

NAMES = ("GPU-12", "GPU-11a", "GPU-11b", "GPU-06")
SIZES_MIB = (12288, 11264, 11264, 6144)
OWN = os.getpid()


def card(uuid: str, mib: int, **more: Any) -> dict[str, Any]:
    return {"uuid": uuid, "name": f"NVIDIA {uuid}", "memory_total_mib": mib, **more}


@pytest.fixture
def unequal(tmp_path: Path) -> HardwareFile:
    """12 GB of which others use 9, and three cards of 11, 11 and 6 GB."""
    theirs = [{"pid": 999_999, "kind": "compute", "memory_mib": 9 * 1024}]
    cards = [card(*each) for each in zip(NAMES, SIZES_MIB, strict=True)]
    return hardware_file(tmp_path, cards[0] | {"process": theirs}, *cards[1:])


def known(gpus: NodeGpus, engine: LoadedEngine, estimate_gib: float, cards: tuple[str, ...] = NAMES) -> None:
    """An earlier load has shown what the model needs."""
    for uuid in cards:
        record = gpus._calibrations.find(uuid, engine.facts.twin, "test 1", "fake 580")
        gpus._calibrations.keep(
            Calibration(
                gpu=uuid,
                model=record.model,
                engine=record.engine,
                driver=record.driver,
                estimate_bytes=int(estimate_gib * GIB),
            )
        )


async def test_p28_a_model_goes_to_a_card_with_enough_free_memory(
    tmp_path: Path, unequal: HardwareFile
) -> None:
    gpus, engine = gpus_of(tmp_path, unequal.path, SystemClock()), LoadedEngine()
    known(gpus, engine, 10)
    await gpus.place(engine)
    assert gpus.placed == engine.gpu == "GPU-11a"


async def test_p28_or_nowhere_with_a_word_on_every_card(tmp_path: Path, unequal: HardwareFile) -> None:
    """Neither the total of one card nor the sum of several counts, and 0.5 GiB stay in reserve."""
    gpus, engine = gpus_of(tmp_path, unequal.path, SystemClock()), LoadedEngine()
    known(gpus, engine, 10.6)
    with pytest.raises(LoadPostponed) as told:
        await gpus.place(engine)
    for uuid in NAMES:
        assert uuid in told.value.message
    assert "10.6 GiB needed" in told.value.message and "3.0 GiB of 12.0 GiB free" in told.value.message
    assert told.value.coarse == "no GPU has enough free memory"
    assert gpus.placed == ""


async def test_p28_a_model_that_was_never_loaded_is_taken_to_need_more_than_its_weights(
    tmp_path: Path, unequal: HardwareFile
) -> None:
    facts = replace(LoadedEngine().facts, weights_bytes=10 * GIB)
    with pytest.raises(LoadPostponed, match=r"14\.0 GiB needed"):
        await gpus_of(tmp_path, unequal.path, SystemClock()).place(LoadedEngine(facts))


async def test_p28_foreign_use_is_read_again_right_before_the_load(
    tmp_path: Path, unequal: HardwareFile
) -> None:
    gpus, engine = gpus_of(tmp_path, unequal.path, SystemClock()), LoadedEngine()
    known(gpus, engine, 10)
    await gpus.watch.look()
    for each in unequal.cards[1:]:
        each["used_mib"] = 2048
    unequal.write()
    with pytest.raises(LoadPostponed):
        await gpus.place(engine)


async def test_p28_an_out_of_memory_raises_the_estimate_and_is_not_repeated_in_a_loop(
    tmp_path: Path,
) -> None:
    file = hardware_file(tmp_path)

    def load() -> None:
        raise EngineFailed("the engine did not start: exit code 1; CUDA error: out of memory")

    gpus, engine = gpus_of(tmp_path, file.path, SystemClock()), LoadedEngine(load=load)
    changed = asyncio.Event()

    async def prepare() -> None:
        """Nothing."""

    events = KeeperEvents(prepare, lambda: None, lambda _reason: None, changed.set)
    keeper = EngineKeeper(PlacedEngine(engine, gpus, SystemClock()), events, back_off_s_first=0.01)
    running = asyncio.get_running_loop().create_task(keeper.run())
    keeper.want_on()
    async with asyncio.timeout(10):
        while keeper.postponed is None:
            await asyncio.sleep(0.01)
    for _ in range(5):
        keeper.look_again()
        await asyncio.sleep(0.02)
    assert engine.starts == 1, "the card of 24 GiB had all free, so more than that is needed"
    assert keeper.problem == ""
    again = CalibrationFile(tmp_path / "calibration.json").find(CARD, "sha256-test", "test 1", "fake 580")
    assert (again.estimate_bytes, again.out_of_memory) == (30 * GIB, 1)
    assert "30.0 GiB needed" in keeper.postponed.message
    running.cancel()
    await asyncio.wait({running})
    assert keeper.postponed is None


async def test_other_failures_of_a_load_change_no_estimate(tmp_path: Path) -> None:
    def load() -> None:
        raise EngineFailed("the engine did not start: exit code 1; no such file")

    gpus = gpus_of(tmp_path, hardware_file(tmp_path).path, SystemClock())
    with pytest.raises(EngineFailed):
        await PlacedEngine(LoadedEngine(load=load), gpus, SystemClock()).start()
    assert gpus.record.estimate_bytes == 0


async def test_what_a_load_held_is_the_estimate_of_the_next(tmp_path: Path) -> None:
    """The engine's process is this very test, whose real memory the stand-in shows as the GPU's."""
    file = hardware_file(tmp_path)
    gpus, engine = gpus_of(tmp_path, file.path, SystemClock()), LoadedEngine(pids=frozenset({OWN}))
    placed = PlacedEngine(engine, gpus, SystemClock())
    gpus.watch.own = placed.process_ids
    await placed.start()
    assert gpus.placed == CARD
    assert gpus.record.memory_bytes > 20 * 1024**2
    later = gpus_of(tmp_path, file.path, SystemClock())
    await later.place(engine)
    assert later.record.estimate_bytes == gpus.record.memory_bytes
    assert later.record.load_s == gpus.record.load_s


async def test_an_engine_that_holds_nothing_of_the_card_is_on_the_processor(tmp_path: Path) -> None:
    gpus = gpus_of(tmp_path, hardware_file(tmp_path).path, SystemClock())
    await PlacedEngine(LoadedEngine(), gpus, SystemClock()).start()
    assert gpus.placed == "" and gpus.trouble() == ""


async def test_speeds_are_measured_once_and_again_for_another_engine_or_driver(tmp_path: Path) -> None:
    file = hardware_file(tmp_path)

    async def calls(facts: EngineFacts) -> int:
        gpus, engine = gpus_of(tmp_path, file.path, SystemClock()), LoadedEngine(facts, pids=frozenset({OWN}))
        placed = PlacedEngine(engine, gpus, SystemClock())
        gpus.watch.own = placed.process_ids
        await placed.start()
        speeds = MeasuredSpeeds()
        await gpus.calibrated(engine, speeds)
        assert speeds.decode_s_per_token > 0 and speeds.prefill_tokens_per_s > 0
        return engine.calls

    facts = LoadedEngine().facts
    assert await calls(facts) == 1
    assert await calls(facts) == 0, "kept on the node"
    assert await calls(replace(facts, version="2")) == 1
    assert await calls(replace(facts, twin="sha256-other")) == 1
    file.path.write_text(file.path.read_text().replace("fake 580", "fake 590"))
    assert await calls(facts) == 1


async def test_a_calibration_is_cancelled_at_once(tmp_path: Path) -> None:
    """The keeper cancels the engine's life, with the calibration in it, when the owner wants the machine."""
    gpus = gpus_of(tmp_path, hardware_file(tmp_path).path, SystemClock())
    engine = LoadedEngine()
    begun = asyncio.Event()
    closed = asyncio.Event()

    async def forever(_call: object) -> Any:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield
        finally:
            closed.set()

    engine.generate = forever  # type: ignore[method-assign]

    async def prepare() -> None:
        await gpus.calibrated(engine, MeasuredSpeeds())

    events = KeeperEvents(prepare, lambda: None, lambda _reason: None, lambda: None)
    keeper = EngineKeeper(PlacedEngine(engine, gpus, SystemClock()), events)
    running = asyncio.get_running_loop().create_task(keeper.run())
    keeper.want_on()
    async with asyncio.timeout(10):
        await begun.wait()
        keeper.want_off()
        await closed.wait()
    assert gpus.record.decode_s_per_token == 0
    running.cancel()
    await asyncio.wait({running})


def test_a_file_of_measurements_that_is_damaged_is_as_none(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(b"{not json")
    file = CalibrationFile(path)
    assert file.find("g", "m", "e", "d") == Calibration(gpu="g", model="m", engine="e", driver="d")
    assert file.problem
    file.keep(Calibration(gpu="g", model="m", engine="e", driver="d", load_s=2.5))
    assert CalibrationFile(path).find("g", "m", "e", "d").load_s == 2.5
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("allowed", [False, True])
async def test_p26_the_processor_is_used_for_a_lost_gpu_only_if_that_is_allowed_and_then_visibly(
    tmp_path: Path, allowed: bool
) -> None:
    file = hardware_file(tmp_path)
    gpus = gpus_of(tmp_path, file.path, SystemClock(), NodeSettings(cpu_when_gpu_lost=allowed))
    engine = LoadedEngine()
    await gpus.watch.look()
    file.write({"error": "GPU_IS_LOST"})
    if not allowed:
        with pytest.raises(LoadPostponed) as told:
            await gpus.place(engine)
        assert told.value.coarse == "GPU lost"
        return
    await gpus.place(engine)
    assert (gpus.placed, engine.gpu) == ("", "")
    assert gpus.note() == "GPU lost: the model runs on the processor"
    file.write()
    await gpus.place(engine)
    assert gpus.note() == ""
