"""An agent with an owner, a real engine program, over the memory bus: P30, and what leaves the machine."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest

from panal.bus.memory_bus import MemoryBroker
from panal.core.clock import SystemClock
from panal.core.ids import IdSource, NodeId
from panal.core.nodes import NodeClass
from panal.core.settings import OwnerSettings
from panal.node.agent import Agent
from panal.node.desk import Desk
from panal.node.desk_limits import DeskLimits, LimitsFile
from panal.node.engines.echo import echo_engine
from panal.node.hardware.idle import Idle
from panal.node.hardware.learnt_calendar import LearntCalendar
from panal.node.hardware.memory import EngineMemory
from panal.node.hardware.owner_watch import OwnerWatch
from panal.node.hardware.senses import Senses
from panal.node.hardware.surroundings import Place
from panal.node.settings import AgentSettings
from panal.policy.desk_limits import Limits
from panal.policy.owner_values import policy_for
from tests.support.agents import running_agent
from tests.support.node_gateway import KEY, TestGateway, chat

IDLE_S, COOLDOWN_S = 1.0, 3.0


class Keyboard:
    """Touched by the test; else untouched for hours."""

    def __init__(self, clock: SystemClock) -> None:
        self.clock = clock
        self.touched_s = clock.monotonic_seconds() - 7200.0
        self.touches_utc_s: list[float] = []

    def touch(self) -> None:
        self.touched_s = self.clock.monotonic_seconds()
        self.touches_utc_s.append(self.clock.utc_seconds())

    def read(self) -> Idle:
        return Idle(self.clock.monotonic_seconds() - self.touched_s)

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class Desktop:
    """One agent of class desktop and everything around it."""

    keyboard: Keyboard
    watch: OwnerWatch
    agent: Agent
    gateway: TestGateway
    wire: list[tuple[str, bytes]] = field(default_factory=list)

    def engines(self) -> frozenset[int]:
        return self.agent.engine_process_ids()

    async def until(self, true: Callable[[], bool], seconds: float = 40.0) -> float:
        """Seconds that it took."""
        clock = SystemClock()
        begun_s = clock.monotonic_seconds()
        async with asyncio.timeout(seconds):
            while not true():
                await asyncio.sleep(0.01)
        return clock.monotonic_seconds() - begun_s


@asynccontextmanager
async def desktop(tmp_path: Path) -> AsyncIterator[Desktop]:
    clock, broker = SystemClock(), MemoryBroker()
    wire: list[tuple[str, bytes]] = []

    def seen(subject: str, payload: bytes) -> bool:
        wire.append((subject, bytes(payload)))
        return False

    broker.lose(seen)
    gateway = TestGateway(broker)
    await gateway.start()
    memory, limits = EngineMemory(), DeskLimits(tmp_path)
    place = Place("linux", {"DBUS_SYSTEM_BUS_ADDRESS": "unix:path=/nowhere"}, True, tmp_path, 0, 0, None)
    senses = Senses(place, clock, lambda: limits.with_operators(Limits()), memory)
    keyboard = Keyboard(clock)
    watch = OwnerWatch(
        policy_for(NodeClass.DESKTOP, OwnerSettings(idle_s=IDLE_S, cooldown_s=COOLDOWN_S)),
        keyboard, Desk(tmp_path, clock), memory, clock,
        poll_s=0.05, senses=senses, calendar=LearntCalendar(tmp_path / "calendar.json", clock),
    )  # fmt: skip
    agent = Agent(
        AgentSettings(node=NodeId("node_test"), agent_version="test"),
        broker.node(KEY), echo_engine(tmp_path), watch, clock, IdSource(clock, os.urandom),
    )  # fmt: skip
    async with running_agent(agent):
        await gateway.ready()
        yield Desktop(keyboard, watch, agent, gateway, wire)
    await gateway.close()


async def test_half_the_slots_are_told_and_kept_to(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        full = (await desk.gateway.ready()).slots
        desk.agent.limit_slots(0.5)
        await desk.gateway.heartbeat_with(lambda beat: beat.replicas[0].slots == full // 2)
        waiting = AgentSettings(node=NodeId("node_test"), agent_version="test").waiting_max
        opened = [desk.gateway.open(slow_chat()) for _ in range(full + waiting)]
        refused = opened[full // 2 + waiting :]
        for one in refused:
            last = await one.end()
            assert last.error is not None
            assert last.error.code == "slots_full"
        desk.agent.limit_slots(1.0)
        await desk.gateway.heartbeat_with(lambda beat: beat.replicas[0].slots == full)


def slow_chat() -> Any:
    return chat("count 400", x_echo={"delay_token_s": 0.02})


async def test_p30_a_node_in_use_takes_nothing_gives_all_back_and_waits_its_grace(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        running = desk.gateway.open(slow_chat())
        await running.until(lambda seen: bool(seen.text))
        engines = desk.engines()
        assert engines
        processes = [psutil.Process(pid) for pid in engines]
        desk.keyboard.touch()
        touched_s = SystemClock().monotonic_seconds()
        await desk.until(lambda: desk.agent.may_serve() is not None, 5.0)
        late = [desk.gateway.open(slow_chat()) for _ in range(10)]
        for one in late:
            last = await one.end()
            assert last.error is not None
            assert last.error.kind == "refused"
            assert not one.text
        last = await running.end()
        assert last.error is not None
        assert last.error.kind == "leaving"
        await desk.until(lambda: not any(process.is_running() for process in processes), 10.0)
        await desk.until(lambda: desk.watch.state.value == "owner", 10.0)
        assert desk.engines() == frozenset()
        # Idle again: after the cooldown, not before.
        await desk.until(lambda: desk.agent.may_serve() is None)
        back_s = SystemClock().monotonic_seconds() - touched_s
        assert back_s >= COOLDOWN_S
        replica = desk.agent.replica
        await desk.gateway.heartbeat_with(
            lambda beat: beat.state == "available" and beat.replicas[0].replica == replica
        )
        again = desk.gateway.open(chat("count 5"))
        assert (await again.end()).finish == "stop"


async def test_what_leaves_the_machine_names_no_program_no_person_and_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = shutil.which("sleep")
    if sleep is None:
        pytest.skip("there is no program 'sleep' to play a game with")
    game = tmp_path / "SecretGame"
    shutil.copy(sleep, game)
    user = SimpleNamespace(name="alice_secret", terminal="pts/77", host="secret-host.example", started=1.0)
    sessions: list[Any] = []
    monkeypatch.setattr(psutil, "users", lambda: list(sessions))
    async with desktop(tmp_path) as desk:
        DeskLimits(tmp_path).write(LimitsFile(programs=["SecretGame"], hours="mo-su 00:00-24:00"))
        await desk.until(lambda: desk.watch.may_serve() is None)
        running = desk.gateway.open(slow_chat())
        await running.until(lambda seen: bool(seen.text))
        played = subprocess.Popen([game, "600"])
        try:
            await desk.until(lambda: desk.watch.reason == "in use by its owner")
            told = await desk.gateway.heartbeat_with(lambda beat: beat.reason == "in use by its owner")
            assert told.state in ("yielding", "owner")
            await desk.until(lambda: desk.watch.state.value == "owner")
            status = Desk(tmp_path, SystemClock()).status().status
            assert status is not None
        finally:
            played.kill()
            played.wait()
        await desk.until(lambda: desk.watch.may_serve() is None)
        sessions.append(user)  # its terminal is not there: used just now
        await desk.until(lambda: desk.watch.may_serve() is not None)
        sessions.clear()
        await desk.until(lambda: desk.watch.may_serve() is None)
        for _ in range(3):
            desk.keyboard.touch()
            await asyncio.sleep(0.4)
        await desk.until(lambda: desk.watch.may_serve() is not None)
        await desk.until(lambda: any(subject.endswith(".report") for subject, _ in desk.wire))
        await asyncio.sleep(1.2)  # one more report and heartbeat
        touches = list(desk.keyboard.touches_utc_s)
    up = [payload for subject, payload in desk.wire if subject.startswith("panal.up.")]
    assert len(up) > 10
    words = (b"secret", b"alice", b"pts/", b"game")
    assert [word for payload in up for word in words if word in payload.lower()] == []
    for payload in up:
        for number in numbers_in(msgspec.msgpack.decode(payload)):
            assert not any(abs(number - touch) < 86_400 for touch in touches), "a time of the clock"
    said = b"".join(up)
    assert b"in use by its owner" in said


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for each in value.values() for number in numbers_in(each)]
    if isinstance(value, list):
        return [number for each in value for number in numbers_in(each)]
    return [float(value)] if isinstance(value, (int, float)) and not isinstance(value, bool) else []
