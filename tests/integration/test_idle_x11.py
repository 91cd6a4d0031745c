"""The real thing: an X server, a key press, an engine that holds memory, and an X server that dies."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from panal.core.clock import SystemClock
from panal.core.nodes import NodeClass, NodeState
from panal.core.settings import OwnerSettings
from panal.node.desk import Desk
from panal.node.hardware.idle import Idle, Unknown
from panal.node.hardware.idle_x11 import X11Idle
from panal.node.hardware.memory import EngineMemory
from panal.node.hardware.owner_watch import OwnerWatch
from panal.policy.owner_values import policy_for
from panal.protocol.messages import YieldReport

XVFB, XDOTOOL, XAUTH = shutil.which("Xvfb"), shutil.which("xdotool"), shutil.which("xauth")
pytestmark = pytest.mark.skipif(
    XVFB is None or XDOTOOL is None, reason="Xvfb and xdotool are needed to press a real key"
)
WAIT_S = 60.0
HELD_MIB = 200
ENGINE = (
    f"held = bytearray(b'x') * ({HELD_MIB} << 20); print('ready', flush=True); import time; time.sleep(600)"
)


class Screen:
    """An X server of our own on a display that was free."""

    def __init__(self, *options: str) -> None:
        self.number = -1
        self._options = options
        self.start()

    def start(self) -> None:
        assert XVFB is not None
        reading, writing = os.pipe()
        name = [f":{self.number}"] if self.number >= 0 else []
        words = [XVFB, *name, "-displayfd", str(writing), "-screen", "0", "320x200x8", "-nolisten", "tcp"]
        self.process = subprocess.Popen(
            [*words, *self._options], pass_fds=[writing], stderr=subprocess.DEVNULL
        )
        os.close(writing)
        with os.fdopen(reading) as stream:
            line = stream.readline()
        if self.number < 0:
            self.number = int(line)

    @property
    def environment(self) -> dict[str, str]:
        return {"DISPLAY": f":{self.number}"}

    def press(self) -> None:
        assert XDOTOOL is not None
        subprocess.run([XDOTOOL, "key", "a"], env={**os.environ, **self.environment}, check=True)

    def move(self) -> None:
        assert XDOTOOL is not None
        subprocess.run(
            [XDOTOOL, "mousemove_relative", "5", "5"], env={**os.environ, **self.environment}, check=True
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen()
    yield made
    made.kill()


@pytest.fixture
def sensor(screen: Screen) -> Iterator[X11Idle]:
    made = X11Idle(screen.environment, SystemClock())
    yield made
    made.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.02)


def seconds(sensor: X11Idle) -> float:
    """The idle time; a busy machine may need some tries for the first answer of an X server."""
    for _ in range(200):
        found = sensor.read()
        if isinstance(found, Idle):
            return found.seconds
        time.sleep(0.1)
    raise AssertionError(found)


async def test_idle_time_grows_and_a_key_or_the_mouse_resets_it(screen: Screen, sensor: X11Idle) -> None:
    for touch in (screen.press, screen.move):
        await until(lambda: seconds(sensor) > 1.0)
        await until(lambda: seconds(sensor) > 1.5)
        touch()
        assert seconds(sensor) < 1.0
    sensor.close()
    assert seconds(sensor) >= 0.0


async def test_a_killed_x_server_is_unknown_and_a_new_one_is_found_again(
    screen: Screen, sensor: X11Idle
) -> None:
    assert seconds(sensor) >= 0.0
    screen.kill()
    found = sensor.read()
    assert isinstance(found, Unknown)
    assert "X server" in found.reason
    screen.start()
    await until(lambda: isinstance(sensor.read(), Idle))


async def test_an_x_server_that_hangs_is_unknown_and_never_blocks(screen: Screen, sensor: X11Idle) -> None:
    assert seconds(sensor) >= 0.0
    screen.process.send_signal(19)
    try:
        await until(lambda: isinstance(sensor.read(), Unknown))
        async with asyncio.timeout(WAIT_S):
            for _ in range(100):
                assert isinstance(sensor.read(), Unknown)
    finally:
        screen.process.send_signal(18)
    await until(lambda: isinstance(sensor.read(), Idle))


@pytest.mark.skipif(XAUTH is None, reason="xauth is needed to make a cookie")
async def test_a_cookie_opens_the_display_and_without_it_the_answer_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "authority"
    cookie = "00112233445566778899aabbccddeeff"
    screen = Screen("-auth", str(file))
    try:
        name = f":{screen.number}"
        assert XAUTH is not None
        subprocess.run([XAUTH, "-f", str(file), "add", name, ".", cookie], check=True, capture_output=True)
        screen.kill()
        screen.start()
        allowed = {**screen.environment, "XAUTHORITY": str(file)}
        with closing(X11Idle(allowed, SystemClock())) as sensor:
            assert seconds(sensor) >= 0.0
        stranger = {**screen.environment, "XAUTHORITY": os.devnull}
        with closing(X11Idle(stranger, SystemClock())) as refused:
            await until(lambda: "refuses" in getattr(refused.read(), "reason", ""))
    finally:
        screen.kill()


class Engine:
    """An agent's work with a real process that holds real memory."""

    def __init__(self) -> None:
        self.watch: OwnerWatch | None = None
        self.process: asyncio.subprocess.Process | None = None
        self.reports: list[YieldReport] = []
        self.handed_over = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def hand_over(self, grace_s: float) -> None:
        self.handed_over += 1
        asyncio.get_running_loop().call_later(0.3, self._ended)

    def _ended(self) -> None:
        assert self.watch is not None
        self.watch.attempt_ended()

    def start_engine(self) -> None:
        task = asyncio.get_running_loop().create_task(self._life())
        self.tasks.add(task)

    async def _life(self) -> None:
        assert self.watch is not None
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ENGINE, stdout=asyncio.subprocess.PIPE
        )
        assert self.process.stdout is not None
        await self.process.stdout.readline()
        self.watch.engine_started()
        await self.process.wait()
        self.process = None
        self.watch.engine_stopped()

    def stop_engine(self, *, kill: bool) -> None:
        if self.process is not None:
            self.process.kill() if kill else self.process.terminate()

    def state_changed(self) -> None:
        """Nobody listens."""

    def engine_process_ids(self) -> frozenset[int]:
        return frozenset({self.process.pid}) if self.process is not None else frozenset()

    def yielded(self, report: YieldReport) -> None:
        self.reports.append(report)


async def test_a_real_key_gives_a_real_engines_memory_back(screen: Screen, tmp_path: Path) -> None:
    clock, engine, memory = SystemClock(), Engine(), EngineMemory()
    policy = policy_for(NodeClass.DESKTOP, OwnerSettings(idle_s=1.0, cooldown_s=2.0))
    desk = Desk(tmp_path, clock)
    watch = OwnerWatch(policy, X11Idle(screen.environment, clock), desk, memory, clock)
    watch.attach(engine)
    engine.watch = watch
    async with asyncio.TaskGroup() as group:
        running = group.create_task(watch.run())
        await until(lambda: watch.may_serve() is None)
        assert (memory.held_bytes() or 0) > HELD_MIB * 1024 * 1024
        watch.attempt_started()
        screen.press()
        await until(lambda: watch.state is NodeState.YIELDING)
        assert watch.may_serve() == "in use by its owner"
        await until(lambda: bool(engine.reports))
        assert memory.held_bytes() == 0
        assert engine.handed_over == 1
        report = engine.reports[0]
        print(f"\nyield: {report}")
        assert report.attempts == 1
        assert 0 <= report.no_new_work_s <= report.handed_over_s <= report.memory_back_s
        await until(lambda: watch.may_serve() is None)

        screen.kill()
        await until(lambda: watch.reason == "idle state unknown")
        await until(lambda: engine.process is None)
        screen.start()
        await until(lambda: watch.may_serve() is None)

        Desk(tmp_path, clock).pause()
        await until(lambda: watch.state is NodeState.OWNER)
        assert watch.reason == "paused by its owner"
        running.cancel()
    assert engine.process is None
