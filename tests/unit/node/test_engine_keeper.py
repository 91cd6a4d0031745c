"""The keeper of an engine: crashes, back-off, giving up, orders in the middle of things."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

import pytest

from panal.core.errors import EngineFailed
from panal.node import engine_keeper
from panal.node.engine_keeper import FAILURES_MAX, EngineKeeper, KeeperEvents
from panal.node.engines.engine import Delta, EngineCall, EngineFacts, Json


class FakeEngine:
    """Starts, crashes and hangs as told."""

    def __init__(self) -> None:
        self.facts = EngineFacts(kind="fake", model="m")
        self.starts = 0
        self.stops = 0
        self.killed = 0
        self.fail_start = False
        self.start_gate = asyncio.Event()
        self.start_gate.set()
        self.crash = asyncio.Event()

    async def start(self) -> None:
        self.starts += 1
        self.crash.clear()
        await self.start_gate.wait()
        if self.fail_start:
            raise EngineFailed("no memory")

    async def stop(self, grace_s: float) -> None:
        self.stops += 1

    def kill(self) -> None:
        self.killed += 1

    async def ended(self) -> str:
        await self.crash.wait()
        return "exit code 9"

    async def healthy(self) -> bool:
        return True

    def generate(self, call: EngineCall) -> AsyncGenerator[Delta, None]:
        raise NotImplementedError

    async def embed(self, call: EngineCall) -> Json:
        raise NotImplementedError

    def process_ids(self) -> frozenset[int]:
        return frozenset()


@dataclass
class Told:
    """What the keeper said, in order."""

    words: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, word: str) -> None:
        self.words.append(word)
        self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.words) < count:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def kept() -> AsyncIterator[tuple[EngineKeeper, FakeEngine, Told]]:
    engine = FakeEngine()
    told = Told()

    async def prepare() -> None:
        return

    events = KeeperEvents(
        prepare,
        lambda: told.say("started"),
        lambda reason: told.say(f"stopped {reason}".strip()),
        lambda: None,
    )
    keeper = EngineKeeper(engine, events, back_off_s_first=0.001, rare_s=0.05)
    task = asyncio.create_task(keeper.run())
    yield keeper, engine, told
    task.cancel()
    await asyncio.wait({task})


async def test_starts_and_stops_as_wanted(kept: tuple[EngineKeeper, FakeEngine, Told]) -> None:
    keeper, engine, told = kept
    assert engine.starts == 0
    keeper.want_on()
    await told.until(1)
    assert keeper.on and keeper.healthy
    keeper.want_off()
    await told.until(2)
    assert told.words == ["started", "stopped"]
    assert not keeper.on and engine.stops >= 1


async def test_a_crash_is_followed_by_a_new_start(kept: tuple[EngineKeeper, FakeEngine, Told]) -> None:
    keeper, engine, told = kept
    keeper.want_on()
    await told.until(1)
    engine.crash.set()
    await told.until(3)
    assert told.words == ["started", "stopped exit code 9", "started"]


async def test_p19_what_fails_again_and_again_is_told_and_tried_rarely_but_for_ever(
    kept: tuple[EngineKeeper, FakeEngine, Told],
) -> None:
    keeper, engine, told = kept
    engine.fail_start = True
    keeper.want_on()
    await told.until(FAILURES_MAX)
    async with asyncio.timeout(5):
        while not keeper.problem:
            await asyncio.sleep(0.001)
    assert "no memory" in keeper.problem
    await told.until(FAILURES_MAX + 2)
    assert keeper.problem, "it says so as long as it fails"
    engine.fail_start = False
    async with asyncio.timeout(10):
        while not keeper.on:
            await asyncio.sleep(0.001)
    assert keeper.problem == "" and told.words[-1] == "started"


async def test_who_is_wanted_off_and_on_again_is_started_at_once(
    kept: tuple[EngineKeeper, FakeEngine, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, engine, told = kept
    monkeypatch.setattr(keeper, "_rare_s", 1000.0)
    engine.fail_start = True
    keeper.want_on()
    async with asyncio.timeout(5):
        while not keeper.problem:
            await asyncio.sleep(0.001)
    keeper.want_on()
    await asyncio.sleep(0.02)
    assert engine.starts == FAILURES_MAX
    engine.fail_start = False
    keeper.want_off()
    keeper.want_on()
    await told.until(FAILURES_MAX + 2)
    assert told.words[-2:] == ["stopped", "started"] and keeper.problem == ""


async def test_p19_the_time_of_a_slow_load_does_not_count_as_a_steady_run(
    kept: tuple[EngineKeeper, FakeEngine, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an engine that fails after a long load would be taken for one that ran well, for ever."""
    keeper, engine, told = kept
    monkeypatch.setattr(engine_keeper, "STEADY_S", 0.0)
    engine.fail_start = True
    keeper.want_on()
    await told.until(FAILURES_MAX)
    async with asyncio.timeout(5):
        while not keeper.problem:
            await asyncio.sleep(0.001)


async def test_a_stop_in_the_middle_of_a_start_is_obeyed(kept: tuple[EngineKeeper, FakeEngine, Told]) -> None:
    keeper, engine, told = kept
    engine.start_gate.clear()
    keeper.want_on()
    async with asyncio.timeout(5):
        while not engine.starts:
            await asyncio.sleep(0)
    keeper.want_off()
    await told.until(1)
    assert told.words == ["stopped"] and engine.stops >= 1


async def test_a_stop_of_an_engine_that_is_off_is_answered_too(
    kept: tuple[EngineKeeper, FakeEngine, Told],
) -> None:
    keeper, engine, told = kept
    keeper.kill()
    await told.until(1)
    assert told.words == ["stopped"] and engine.killed == 1


async def test_a_restart_counts_as_no_failure_and_a_crash_after_it_does(
    kept: tuple[EngineKeeper, FakeEngine, Told],
) -> None:
    keeper, engine, told = kept
    keeper.want_on()
    await told.until(1)
    keeper.restart()
    engine.crash.set()
    async with asyncio.timeout(10):
        while engine.starts < 2 or not keeper.on:
            await asyncio.sleep(0.01)
    assert engine.killed == 1
    assert keeper._failures == 0
    engine.crash.set()
    async with asyncio.timeout(10):
        while keeper._failures == 0:
            await asyncio.sleep(0.01)
