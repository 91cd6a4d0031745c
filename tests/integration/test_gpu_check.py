"""``make gpu-check``: whole on the stand-in, honest without a GPU, and able to find what is wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from panal.cli import gpu_check
from panal.cli.gpu_check import GpuCheck, _energy
from panal.core.clock import SystemClock
from panal.node.hardware.gpu_fake import FakeNvml
from tests.support.gpus import CARD, gpu, hardware_file


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "ENERGY_S", 0.6)
    monkeypatch.setattr(gpu_check, "BACK_S_MAX", 1.0)
    monkeypatch.setattr(gpu_check, "LOOKS", 3)


async def rows_of(fake: FakeNvml) -> dict[str, gpu_check.Row]:
    return {row.what: row for row in await GpuCheck(SystemClock(), fake, lambda _words: None).run()}


async def test_it_runs_whole_on_the_stand_in(tmp_path: Path) -> None:
    rows = await rows_of(FakeNvml(hardware_file(tmp_path).path, SystemClock()))
    assert {name: row.good for name, row in rows.items()} == {
        "one look": True, "facts": True, "energy counter": True, "yield": True,
    }  # fmt: skip
    held = rows["yield"].values["held_bytes"]
    assert held >= gpu_check.HELD_BYTES, "the real memory of a real program"
    assert rows["yield"].values["memory_back_s"] <= 1.0


async def test_memory_that_does_not_come_back_is_found(tmp_path: Path) -> None:
    file = hardware_file(tmp_path)
    fake = FakeNvml(file.path, SystemClock())
    real = fake.nvmlDeviceGetMemoryInfo
    seen: list[int] = []

    def kept(handle: str) -> Any:
        info = real(handle)
        seen.append(info.used)
        info.used = max(seen)
        return info

    fake.nvmlDeviceGetMemoryInfo = kept  # type: ignore[method-assign]
    rows = await rows_of(fake)
    assert rows["yield"].good is False
    assert "not back" in rows["yield"].told


async def test_a_driver_that_shows_nothing_of_what_is_taken_is_found(tmp_path: Path) -> None:
    fake = FakeNvml(hardware_file(tmp_path).path, SystemClock())
    real = fake.nvmlDeviceGetMemoryInfo
    first = real(CARD)
    fake.nvmlDeviceGetMemoryInfo = lambda _handle: first  # type: ignore[method-assign]
    assert (await rows_of(fake))["yield"].good is False


def test_an_energy_counter_that_stands_still_or_runs_away_is_found() -> None:
    def judged(used_j: float | None) -> bool | None:
        after = gpu(energy_j=None if used_j is None else 100.0 + used_j)
        return _energy(gpu(energy_j=100.0), after, [20.0, 30.0], 4.0).good

    assert [judged(each) for each in (100.0, 0.0, 1000.0, None)] == [True, False, False, None]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "panal.cli.gpu_check", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_without_a_gpu_it_says_so_and_checks_nothing(tmp_path: Path) -> None:
    """Also true on a machine with a GPU: the stand-in has none."""
    empty = tmp_path / "none.toml"
    empty.write_text('driver = "fake"\n')
    told = tmp_path / "told.json"
    done = run("--fake-hardware", str(empty), "--json", str(told))
    assert done.returncode == 0
    assert done.stdout.strip() == gpu_check.NO_GPU
    assert json.loads(told.read_text())["checked"] is False


def test_a_driver_that_fails_is_no_good_end(tmp_path: Path) -> None:
    file = hardware_file(tmp_path).write({"error": "UNKNOWN"})
    done = run("--fake-hardware", str(file.path))
    assert done.returncode == 1
    assert "The GPUs cannot be read" in done.stderr and "Traceback" not in done.stderr
