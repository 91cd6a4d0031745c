"""NVML's answers and each of its errors, told by the stand-in: no crash, unknown stays unknown."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from panal.core.errors import SettingsError
from panal.core.gpus import GIB, MIB, GpuFacts
from panal.node.hardware.gpu_fake import FakeNvml
from panal.node.hardware.gpu_nvml import NvmlReader, nvml_module
from panal.node.hardware.gpu_reading import DriverFailed, GpuProbe, NoDriver, read_now
from tests.support.gpus import CARD, OTHER, HandClock, HardwareFile, hardware_file

ERRORS = sorted(
    name.removeprefix("NVML_ERROR_")
    for name in vars(importlib.import_module("pynvml"))
    if name.startswith("NVML_ERROR_")
)
FACTS_BY_CALL = {
    "nvmlDeviceGetMemoryInfo": ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes"),
    "nvmlDeviceGetUtilizationRates": ("busy_share",),
    "nvmlDeviceGetTemperature": ("temperature_c",),
    "nvmlDeviceGetPowerUsage": ("power_w",),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit_w",),
    "nvmlDeviceGetTotalEnergyConsumption": ("energy_j",),
    "nvmlDeviceGetClockInfo": ("clock_mhz",),
    "nvmlDeviceGetComputeRunningProcesses": ("processes",),
    "nvmlDeviceGetGraphicsRunningProcesses": ("processes",),
}
WHOLE_DRIVER = ("nvmlInit", "nvmlDeviceGetCount")
FULL: dict[str, Any] = {
    "uuid": CARD,
    "name": "NVIDIA GeForce RTX 4090",
    "memory_total_mib": 24576,
    "used_mib": 200,
    "busy_percent": 3,
    "temperature_c": 41,
    "power_w": 25.5,
    "power_limit_w": 450.0,
    "clock_mhz": 210,
    "energy_j": 1000.0,
    "throttle_bits": 0x44,
    "process": [
        {"pid": 10, "kind": "graphics", "memory_mib": 700, "busy_percent": 4},
        {"pid": 11, "kind": "compute", "memory_mib": 1000},
        {"pid": 12, "kind": "both"},
    ],
}


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def file(tmp_path: Path) -> HardwareFile:
    return hardware_file(tmp_path, FULL)


@pytest.fixture
def fake(file: HardwareFile, clock: HandClock) -> FakeNvml:
    return FakeNvml(file.path, clock)


def reader_of(fake: FakeNvml) -> NvmlReader:
    return NvmlReader(lambda: fake, pid_seen=lambda _pid: True)


def test_every_fact_comes_with_its_unit(fake: FakeNvml, clock: HandClock) -> None:
    reader = reader_of(fake)
    reader.read()
    clock.now_s += 10
    (facts,) = reader.read()
    assert (facts.uuid, facts.name, facts.driver) == (CARD, "NVIDIA GeForce RTX 4090", "fake 580")
    assert facts.memory_total_bytes == 24 * GIB
    assert facts.memory_used_bytes == (200 + 700 + 1000) * MIB
    assert facts.memory_free_bytes == 24 * GIB - 1900 * MIB
    assert (facts.busy_share, facts.temperature_c, facts.clock_mhz) == (0.07, 41, 210)
    assert (facts.power_w, facts.power_limit_w) == (25.5, 450.0)
    assert facts.energy_j == pytest.approx(1000 + 255, abs=1)
    assert facts.throttle == {"power_cap", "hw_thermal"}
    assert (facts.lost, facts.problem) == (False, "")


def test_programs_are_told_apart_and_what_windows_hides_is_unknown(fake: FakeNvml) -> None:
    (facts,) = reader_of(fake).read()
    assert facts.processes is not None
    draws, computes, both = facts.processes
    assert (draws.pid, draws.computes, draws.memory_bytes, draws.busy_share) == (10, False, 700 * MIB, 0.04)
    assert (computes.pid, computes.computes, computes.draws, computes.busy_share) == (11, True, False, 0.0)
    assert (both.pid, both.computes, both.draws, both.memory_bytes) == (12, True, True, None)
    assert {each.name for each in facts.processes} == {""}


def test_pids_of_another_system_tell_nothing(fake: FakeNvml) -> None:
    (facts,) = NvmlReader(lambda: fake, pid_seen=lambda _pid: False).read()
    assert facts.processes is None


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", FACTS_BY_CALL)
def test_a_fact_that_fails_is_unknown_and_the_others_stay(
    file: HardwareFile, fake: FakeNvml, call: str, error: str
) -> None:
    whole = reader_of(fake).read()[0]
    file.write({"error": error, "call": call})
    (facts,) = reader_of(fake).read()
    assert facts.uuid == CARD
    if error in ("GPU_IS_LOST", "RESET_REQUIRED"):
        assert facts.lost and facts.problem
        return
    for name in GpuFacts.__dataclass_fields__:
        if name in FACTS_BY_CALL[call]:
            assert getattr(facts, name) is None, name
        elif name not in ("energy_j", "problem"):
            assert getattr(facts, name) == getattr(whole, name), name
    assert facts.lost is False


@pytest.mark.parametrize("error", ERRORS)
def test_unknown_shares_of_time_are_not_0(file: HardwareFile, fake: FakeNvml, error: str) -> None:
    file.write({"error": error, "call": "nvmlDeviceGetProcessUtilization"})
    (facts,) = reader_of(fake).read()
    if not facts.lost:
        assert facts.processes is not None
        shares = {each.busy_share for each in facts.processes}
        assert shares == ({0.0} if error == "NOT_FOUND" else {None}), "not found means: nothing ran"


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", WHOLE_DRIVER)
def test_a_driver_that_fails_is_asked_afresh(
    file: HardwareFile, fake: FakeNvml, call: str, error: str
) -> None:
    reader = reader_of(fake)
    assert len(reader.read()) == 1
    reader.close()
    file.write({"error": error, "call": call})
    with pytest.raises(DriverFailed):
        reader.read()
    file.write()
    assert len(reader.read()) == 1


@pytest.mark.parametrize("error", ["LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED"])
def test_a_driver_that_was_never_there_is_no_failure_and_may_come(
    file: HardwareFile, fake: FakeNvml, error: str
) -> None:
    file.write({"error": error, "call": "nvmlInit"})
    reader = reader_of(fake)
    with pytest.raises(NoDriver):
        reader.read()
    file.write()
    assert len(reader.read()) == 1


@pytest.mark.parametrize("error", ERRORS)
def test_any_error_of_everything_ends_in_an_answer(
    file: HardwareFile, fake: FakeNvml, clock: HandClock, error: str
) -> None:
    file.write({"error": error})
    found = read_now([reader_of(fake)], clock)
    assert found.gpus == ()
    assert bool(found.problem) != found.no_driver


def test_gpus_that_vanish_come_late_or_change_their_index_keep_their_identity(
    file: HardwareFile, fake: FakeNvml
) -> None:
    second = {"uuid": OTHER, "name": "NVIDIA RTX A4000", "memory_total_mib": 16384}
    reader = reader_of(fake)
    file.cards = [FULL, second]
    file.write()
    assert [(each.uuid, each.index) for each in reader.read()] == [(CARD, 0), (OTHER, 1)]
    file.write({"gpu": CARD, "set": {"gone": True}})
    assert [(each.uuid, each.index) for each in reader.read()] == [(OTHER, 0)]
    file.cards = [second, FULL]
    file.write()
    assert [(each.uuid, each.index) for each in reader.read()] == [(OTHER, 0), (CARD, 1)]


def test_one_card_of_two_that_is_lost_leaves_the_other(file: HardwareFile, fake: FakeNvml) -> None:
    file.cards = [FULL, {"uuid": OTHER, "name": "NVIDIA RTX A4000", "memory_total_mib": 16384}]
    file.write({"gpu": CARD, "error": "GPU_IS_LOST", "call": "nvmlDeviceGetMemoryInfo"})
    lost, good = reader_of(fake).read()
    assert (lost.uuid, lost.lost, good.uuid, good.lost) == (CARD, True, OTHER, False)


def test_events_come_in_their_time(file: HardwareFile, clock: HandClock) -> None:
    file.write({"at_s": 5, "set": {"temperature_c": 90}}, {"at_s": 9, "set": {"temperature_c": 50}})
    fake = FakeNvml(file.path, clock)
    seen = []
    for _ in range(11):
        seen.append(reader_of(fake).read()[0].temperature_c)
        clock.now_s += 1
    assert seen == [41] * 5 + [90] * 4 + [50] * 2


@pytest.mark.parametrize(
    "text",
    [
        "gpu = 3",
        "[[gpu]]\nuuid = 'a'\nname = 'b'",
        "[[gpu]]\nuuid = 'a'\nname = 'b'\nmemory_total_mib = 1\ncolour = 'red'",
        "[[event]]\nat_s = 1\nerror = 'NO_SUCH'",
        "[[event]]\nat_s = 1\ngpu = 'nobody'",
        "[[gpu]]\nuuid = 'a'\nname = 'b'\nmemory_total_mib = 1\n[[event]]\nat_s = 1\nset = {colour = 'red'}",
        "not toml",
    ],
)
def test_a_file_that_describes_no_hardware_is_refused_with_a_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "hardware.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as told:
        FakeNvml(file, HandClock())
    assert str(file) in told.value.message


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no file"):
        FakeNvml(tmp_path / "none.toml", HandClock())


def test_this_machine_answers_whatever_it_has() -> None:
    """Without a driver the large bindings are not even imported."""
    try:
        module = nvml_module()
    except NoDriver:
        return
    assert hasattr(module, "nvmlInit")


class Slow:
    """A reader that waits for a gate."""

    def __init__(self, wait: Callable[[], Any]) -> None:
        self.wait = wait
        self.calls = 0

    def read(self) -> list[GpuFacts]:
        self.calls += 1
        self.wait()
        return []

    def close(self) -> None:
        """Nothing is held."""


async def test_a_hanging_driver_is_late_and_holds_up_nothing(clock: HandClock) -> None:
    import asyncio
    import threading

    gate = threading.Event()
    slow = Slow(lambda: gate.wait(30))
    probe = GpuProbe([slow], clock, deadline_s=0.05)
    try:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        turning = asyncio.get_running_loop().create_task(turn())
        found = await probe.read()
        again = await probe.read()
        turning.cancel()
        assert found.late and again.late and found.problem
        assert turns > 10, "the event loop went on"
        assert slow.calls == 1, "no second question is put to a driver that hangs"
        gate.set()
        async with asyncio.timeout(5):
            while (await probe.read()).late:
                await asyncio.sleep(0.01)
    finally:
        gate.set()
        probe.close()


async def test_who_asks_meanwhile_gets_the_same_answer(clock: HandClock) -> None:
    import asyncio
    import threading

    gate = threading.Event()
    slow = Slow(lambda: gate.wait(30))
    probe = GpuProbe([slow], clock, deadline_s=20)
    one, two = (asyncio.get_running_loop().create_task(probe.read()) for _ in range(2))
    await asyncio.sleep(0.05)
    gate.set()
    assert await one is await two
    assert slow.calls == 1
    probe.close()


def test_a_reader_that_breaks_is_a_problem_and_no_crash(clock: HandClock) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    found = read_now([Slow(broken)], clock)
    assert "ZeroDivisionError" in found.problem
    assert not found.no_driver
