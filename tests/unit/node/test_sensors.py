"""Sensors without a bus: in bounded time, honest about what they cannot see, free of names."""

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from panal.core.clock import ManualClock, SystemClock
from panal.core.errors import SettingsError
from panal.node.engines.child import lower_priority
from panal.node.hardware.aside import Aside, StillBusy
from panal.node.hardware.desktop_input import DesktopInput
from panal.node.hardware.disk import Disk, size_bytes
from panal.node.hardware.idle import Idle, NoSensor, Unknown
from panal.node.hardware.idle_helper import Helper, HelperIdle, helper_file
from panal.node.hardware.learnt_calendar import LearntCalendar
from panal.node.hardware.logind import SessionFacts, facts_of
from panal.node.hardware.memory import EngineMemory
from panal.node.hardware.power import Power
from panal.node.hardware.programs import Programs
from panal.node.hardware.senses import NoGpu, Senses
from panal.node.hardware.surroundings import Place, Surroundings
from panal.node.hardware.terminals import Terminals
from panal.node.hardware.watcher import STALE_S, Blind, Watcher
from panal.policy.desk_limits import Limits
from panal.policy.signs import GpuUse, People


async def test_a_call_that_hangs_costs_one_thread_and_nobody_waits_for_it() -> None:
    free = threading.Event()
    aside = Aside(free.wait, "the disk of another machine")
    before = threading.active_count()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await aside.call()
    for _ in range(5):
        with pytest.raises(StillBusy):
            await aside.call()
    assert threading.active_count() == before + 1
    free.set()
    async with asyncio.timeout(20):
        while True:
            try:
                assert await aside.call()
                break
            except StillBusy:
                await asyncio.sleep(0.01)


class Fickle:
    """A sensor that does what the test says."""

    name = "fickle"
    each_s = 0.01

    def __init__(self) -> None:
        self.answer: Any = 1

    async def look(self) -> int:
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await asyncio.sleep(3600)
        return int(self.answer)


@pytest.mark.parametrize(
    ("failure", "words"),
    [(Blind("no permission"), "no permission"), (RuntimeError("alice"), "RuntimeError"), (None, "in time")],
)
async def test_a_sensor_that_fails_is_unknown_with_a_reason_once_its_word_is_old(
    failure: Any, words: str
) -> None:
    clock, sensor = ManualClock(), Fickle()
    watcher = Watcher(sensor, clock, str)
    assert isinstance(watcher.now(), Unknown)
    assert watcher.word().startswith("not there")
    await watcher.look()
    assert watcher.now() == 1
    sensor.answer = failure
    await watcher.look()
    clock.advance(STALE_S)
    assert watcher.now() == 1
    clock.advance(0.1)
    assert isinstance(watcher.now(), Unknown)
    assert words in watcher.word()
    assert "alice" not in watcher.word(), "an exception's own words may name somebody"
    sensor.answer = 2
    await watcher.look()
    assert watcher.now() == 2


# --- programs ----------------------------------------------------------------------------------------


async def test_a_named_program_is_seen_when_it_starts_and_gone_when_it_ends(tmp_path: Path) -> None:
    sleep = shutil.which("sleep")
    if sleep is None:
        pytest.skip("there is no program 'sleep'")
    game = tmp_path / "MyGame"
    shutil.copy(sleep, game)
    own: set[int] = set()
    sensor = Programs(lambda: {"mygame.EXE"}, lambda: own)
    assert await sensor.look() == ()
    started = subprocess.Popen([game, "60"])
    try:
        assert await sensor.look() == ("mygame",)
        own.add(started.pid)
        assert await sensor.look() == (), "what is our own does not count"
        own.clear()
    finally:
        started.kill()
        started.wait()
    assert await sensor.look() == ()


async def test_a_program_that_took_its_name_after_its_start_is_seen(tmp_path: Path) -> None:
    sleep, shell = shutil.which("sleep"), shutil.which("sh")
    if sleep is None or shell is None:
        pytest.skip("there is no shell to start a program from")
    game = tmp_path / "LateGame"
    shutil.copy(sleep, game)
    sensor = Programs(lambda: {"lategame"}, lambda: ())
    await sensor.look()
    with subprocess.Popen([shell, "-c", f"read go; exec {game} 60"], stdin=subprocess.PIPE) as started:
        assert await sensor.look() == ()
        assert started.stdin is not None
        started.stdin.write(b"go\n")
        started.stdin.flush()
        async with asyncio.timeout(20):
            for _ in range(40):
                if await sensor.look():
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError("not seen within the looks that take everything in")
        started.kill()


async def test_without_names_no_process_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "pids", lambda: 1 / 0)
    assert await Programs(lambda: (), lambda: ()).look() == ()


# --- terminals, power, disk ----------------------------------------------------------------------------


async def test_a_terminal_is_as_idle_as_it_was_read_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SystemClock()
    now_s = clock.utc_seconds()
    terminal = tmp_path / "pts" / "3"
    terminal.parent.mkdir()
    terminal.write_text("")
    os.utime(terminal, (now_s - 500.0, now_s))
    users = [SimpleNamespace(name="alice", terminal="pts/3", host="far", started=now_s - 9000.0)]
    monkeypatch.setattr(psutil, "users", lambda: users)
    sensor = Terminals(clock, tmp_path)
    found = await sensor.look()
    assert found.idle_s == pytest.approx(500.0, abs=30.0)
    assert "alice" not in found.words()
    users.append(SimpleNamespace(name="bob", terminal="pts/4", host="far", started=now_s))
    assert (await sensor.look()).idle_s == 0.0, "a terminal that cannot be read was used just now"
    users[:] = [SimpleNamespace(name="bob", terminal="../etc", host="far", started=now_s)]
    assert (await sensor.look()).idle_s == 0.0
    users[:] = [SimpleNamespace(name="alice", terminal=":0", host="", started=1.0)]
    assert (await sensor.look()).idle_s is None, "a graphical session is no terminal"


@pytest.mark.parametrize(("battery", "wanted"), [(None, False), (True, False), (False, True)])
async def test_without_upower_the_system_s_own_word_on_the_battery_counts(
    battery: bool | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = None if battery is None else SimpleNamespace(power_plugged=battery)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: found)
    assert await Power(None).look() is wanted


async def test_a_battery_that_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: SimpleNamespace(power_plugged=None))
    with pytest.raises(Blind):
        await Power(None).look()


async def test_the_disk_is_too_full_by_its_room_or_by_the_weights_on_it(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "one.gguf").write_bytes(b"x" * 5000)
    assert size_bytes(tmp_path / "weights") == 5000
    assert await Disk(tmp_path / "weights", 0, 0).look() is False
    assert await Disk(tmp_path / "weights", 2**62, 0).look() is True
    assert await Disk(tmp_path / "weights", 0, 4999).look() is True
    assert await Disk(tmp_path / "weights", 0, 5000).look() is False
    assert await Disk(tmp_path / "not" / "there" / "yet", 1, 5).look() is False


# --- sessions as logind names them ---------------------------------------------------------------------

LOCAL = {
    "Uid": 1000,
    "Seat": ("seat0", "/s"),
    "Active": True,
    "LockedHint": False,
    "Remote": False,
    "TTY": "",
}


@pytest.mark.parametrize(
    ("sessions", "wanted"),
    [
        ([], SessionFacts(People.NOBODY)),
        ([LOCAL], SessionFacts(People.HERE, idle_s=0.0)),
        ([{**LOCAL, "LockedHint": True}], SessionFacts(People.LOCKED)),
        ([{**LOCAL, "Active": False}], SessionFacts(People.LOCKED)),
        (
            [{**LOCAL, "IdleHint": True, "IdleSinceHint": 900_000_000}],
            SessionFacts(People.HERE, idle_s=100.0),
        ),
        ([{**LOCAL, "Uid": 7}], SessionFacts(People.HERE, idle_s=0.0)),
        (
            [{**LOCAL, "Active": False, "Display": ":0"}, {**LOCAL, "Uid": 7}],
            SessionFacts(People.HERE, idle_s=0.0, other=True, display=":0"),
        ),
        ([{**LOCAL, "Seat": ("", "/"), "Remote": True}], SessionFacts(People.NOBODY, remote=True)),
        ([{**LOCAL, "Seat": ("", "/"), "Remote": True, "TTY": "pts/1"}], SessionFacts(People.NOBODY)),
        ([{**LOCAL, "Seat": ("", "/"), "Remote": True, "IdleHint": True}], SessionFacts(People.NOBODY)),
    ],
)
def test_sessions_are_understood(sessions: list[dict[str, Any]], wanted: SessionFacts) -> None:
    assert facts_of(sessions, False, False, 1000, 1000.0) == wanted


# --- together --------------------------------------------------------------------------------------------


def a_place(tmp_path: Path, *, owned: bool = True) -> Place:
    environment = {"DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={tmp_path / 'none'}"}
    return Place("linux", environment, owned, tmp_path, 0, 0, None)


async def test_hours_and_limits_of_the_owner_are_signs(tmp_path: Path) -> None:
    clock = ManualClock()
    limits = Limits()
    found = Surroundings(a_place(tmp_path), clock, lambda: limits, lambda: ())
    assert found.signs(over_limit=False).in_hours
    limits = Limits(hours=("mo-su 00:00-24:00",))
    assert found.signs(over_limit=False).in_hours
    limits = Limits(closed=True)
    assert not found.signs(over_limit=False).in_hours
    limits = Limits(hours=("mo-su 00:00-12:00", "mo-su 12:00-24:00"))
    assert not found.signs(over_limit=False).in_hours, "all of them must allow"
    assert found.signs(over_limit=True).over_limit


async def test_an_engine_over_its_memory_cap_is_seen_and_so_is_one_that_cannot_be_measured(
    tmp_path: Path,
) -> None:
    clock, memory = ManualClock(), EngineMemory()
    memory.look([os.getpid()])
    limits = Limits(memory_bytes_max=1)
    senses = Senses(a_place(tmp_path), clock, lambda: limits, memory)
    assert senses.signs().over_limit
    limits = Limits(memory_bytes_max=2**50)
    clock.advance(5.0)
    assert not senses.signs().over_limit

    class Broken:
        def used_bytes(self, pids: object) -> int | None:
            return None

    limits = Limits(gpu_memory_bytes_max=2**50)
    blind = Senses(a_place(tmp_path), clock, lambda: limits, EngineMemory(Broken()))
    assert blind.signs().over_limit


def test_accelerators_that_cannot_be_read_are_not_seen_and_end_nothing_else(tmp_path: Path) -> None:
    class Broken(NoGpu):
        def read(self) -> GpuUse | None:
            raise OSError("driver")

    senses = Senses(a_place(tmp_path), ManualClock(), Limits, EngineMemory(), Broken())
    use = senses.gpu_use()
    assert use is not None
    assert use.foreign is None
    assert Senses(a_place(tmp_path), ManualClock(), Limits, EngineMemory()).gpu_use() is None


def test_a_power_cap_that_cannot_be_set_is_told_to_the_owner(tmp_path: Path) -> None:
    senses = Senses(a_place(tmp_path), ManualClock(), lambda: Limits(power_w_max=100.0), EngineMemory())
    senses.signs()
    assert "no way to cap" in senses.words()["power cap"]


async def test_input_without_any_source_is_unknown_with_the_last_reason() -> None:
    class NoBus:
        async def ask(self, *words: object) -> list[Any]:
            raise Blind("there is no session bus")

    sensor = DesktopInput({}, SystemClock(), NoBus(), lambda: Unknown("no logind"))  # type: ignore[arg-type]
    task = asyncio.get_running_loop().create_task(sensor.run())
    async with asyncio.timeout(20):
        while "no logind" not in getattr(sensor.read(), "reason", ""):
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    hinted = SessionFacts(People.HERE, idle_s=50.0)
    sensor = DesktopInput({}, SystemClock(), NoBus(), lambda: hinted)  # type: ignore[arg-type]
    task = asyncio.get_running_loop().create_task(sensor.run())
    async with asyncio.timeout(20):
        while not isinstance(sensor.read(), Idle):
            await asyncio.sleep(0.01)
    assert sensor.name == "logind's hint"
    task.cancel()
    await asyncio.wait({task})


# --- a helper for services -------------------------------------------------------------------------------


def test_a_service_believes_fresh_helpers_and_the_least_idle_of_them(tmp_path: Path) -> None:
    clock = ManualClock()
    seen: list[float] = [100.0, 5.0]

    class Session:
        def __init__(self, number: int) -> None:
            self.number = number

        def read(self) -> Idle:
            return Idle(seen[self.number])

        def close(self) -> None:
            """Nothing is held."""

    helpers = [Helper(helper_file(tmp_path, f"s{n}"), Session(n), clock) for n in range(2)]
    agent = HelperIdle(tmp_path / "desk" / "sessions", NoSensor("session 0 sees nobody"), clock)
    first = agent.read()
    assert isinstance(first, Unknown)
    assert "panal desk helper" in first.reason
    for helper in helpers:
        helper.look()
    assert agent.read() == Idle(5.0)
    clock.advance(2.0)
    assert agent.read() == Idle(7.0)
    clock.advance(2.0)
    assert isinstance(agent.read(), Unknown), "silent helpers are an owner at work"
    seen[0] = 0.0
    helpers[0].look()
    assert agent.read() == Idle(0.0)
    (tmp_path / "desk" / "sessions" / "s1.json").write_text("{")
    assert isinstance(agent.read(), Unknown), "a broken file may be the one of whoever is there"
    with pytest.raises(SettingsError):
        helper_file(tmp_path, "../../x")


# --- the calendar's file, and courtesy ------------------------------------------------------------------


def test_the_calendar_survives_a_restart_and_a_broken_file_is_begun_anew(tmp_path: Path) -> None:
    clock, file = ManualClock(), tmp_path / "desk" / "calendar.json"
    calendar = LearntCalendar(file, clock)
    for minute in range(600):
        clock.advance(31.0)
        calendar.learn(free=minute % 4 != 3)
    calendar.keep()
    told = calendar.hazards_per_h()
    assert told[0] > 1.0
    assert LearntCalendar(file, clock).hazards_per_h() == told
    assert file.stat().st_mode & 0o077 == 0
    file.write_text("{}")
    assert LearntCalendar(file, clock).hazards_per_h() == [0.4, 0.4]


def test_an_engine_gives_way_on_processor_and_disk() -> None:
    code = (
        "from panal.node.engines.child import lower_priority; import os, psutil, sys;"
        "lower_priority(19); p = psutil.Process();"
        "print(p.nice(), int(p.ionice().ioclass) if sys.platform == 'linux' else 3)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.split() == ["19", "3"]
    before = os.getpriority(os.PRIO_PROCESS, 0)
    lower_priority(0)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
