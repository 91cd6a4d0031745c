"""P27: an engine that outlived its agent is found and ended by the next one, and no stranger is."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from panal.node.engines.orphans import EngineRecord, Orphans
from panal.node.engines.process import EngineProcess, Program

SLEEPS = (sys.executable, "-c", "import time; time.sleep(600)")
READY = (sys.executable, "-c", "import time; print('{\"port\": 1}', flush=True); time.sleep(600)")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(SLEEPS, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_p27_a_left_over_engine_is_ended_with_its_children(tmp_path: Path) -> None:
    code = f"import subprocess, sys; subprocess.run({SLEEPS!r})"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    parent = psutil.Process(process.pid)
    while not parent.children():
        assert process.poll() is None
    child = parent.children()[0]
    Orphans(tmp_path / "echo.process").remember(process.pid)
    assert set(Orphans(tmp_path / "echo.process").end()) == {process.pid, child.pid}
    process.wait(10.0)
    assert not child.is_running()
    assert Orphans(tmp_path / "echo.process").end() == []


def test_p27_nobody_else_is_ended(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    file = tmp_path / "echo.process"
    Orphans(file).remember(sleeper.pid)
    record = msgspec.json.decode(file.read_bytes(), type=EngineRecord)
    copied = tmp_path / "copied" / "echo.process"
    copied.parent.mkdir()
    copied.write_bytes(file.read_bytes())
    assert Orphans(copied).end() == [], "the folder was copied; the engine is the first one's"
    later = msgspec.structs.replace(record, born_s=record.born_s - 60.0)
    file.write_bytes(msgspec.json.encode(later))
    assert Orphans(file).end() == [], "the number was given to another process"
    for damaged in (b"", b"{}", b"\xff"):
        file.write_bytes(damaged)
        assert Orphans(file).end() == []
    assert sleeper.poll() is None


async def test_p27_the_next_start_ends_what_the_last_agent_left(tmp_path: Path) -> None:
    program = Program(READY, tmp_path / "engine.log", ready_s_max=20.0)
    first = EngineProcess(program, "k")
    await first.start()
    left_over = first.process_id
    assert left_over is not None
    second = EngineProcess(program, "k")  # the first was never stopped: its agent is gone
    await second.start()
    async with asyncio.timeout(10.0):
        await first.exited.wait()
    assert second.process_id is not None and psutil.pid_exists(second.process_id)
    await second.stop()
    assert not (tmp_path / "engine.process").exists()
    await first.stop()
