"""Programs that end come back, a few times; what cannot come back is told, and stops what needs it."""

import asyncio
from collections.abc import Callable

import pytest

from panal.cli.children import RESTARTS_MAX, RESTARTS_WITHIN_S, Child, Restarts
from panal.cli.supervision import Ended, Part, Supervision
from panal.core.clock import ManualClock
from panal.core.errors import SettingsError


class Fast(Restarts):
    """As the real one, without the pauses."""

    def next_pause_s(self, now_s: float) -> float | None:
        return None if super().next_pause_s(now_s) is None else 0.0


class Program:
    """A program that ends as it is told to. ``fails`` counts starts that do not work."""

    def __init__(self, *, needed: bool = True, fails: int = 0) -> None:
        self.ends: asyncio.Queue[Ended] = asyncio.Queue()
        self.starts = 0
        self.running = asyncio.Event()
        self._fails = fails
        self.part = Part("engine room", self._start, self.ends.get, needed=needed, restarts=Fast())

    async def _start(self) -> None:
        self.starts += 1
        if self.starts <= self._fails:
            self.ends.put_nowait(Ended(1))
            raise SettingsError("the port is in use")
        self.running.set()


async def supervised(
    program: Program, during: Callable[[asyncio.Event], None] = lambda _stopped: None
) -> tuple[str, list[str]]:
    said: list[str] = []
    stopped = asyncio.Event()
    async with asyncio.timeout(10):
        running = asyncio.create_task(Supervision([program.part], ManualClock(), said.append).run(stopped))
        during(stopped)
        return await running, said


async def test_what_ends_comes_back_and_both_is_told() -> None:
    program = Program()
    program.ends.put_nowait(Ended(-9))
    said: list[str] = []
    stopped = asyncio.Event()
    async with asyncio.timeout(10):
        running = asyncio.create_task(Supervision([program.part], ManualClock(), said.append).run(stopped))
        await program.running.wait()
        while len(said) < 2:
            await asyncio.sleep(0)
        stopped.set()
        assert await running == ""
    assert "status -9" in said[0] and said[1] == "The engine room runs again."


async def test_a_start_that_fails_is_tried_again_with_its_reason() -> None:
    program = Program(fails=2)
    program.ends.put_nowait(Ended(-9))
    said: list[str] = []
    stopped = asyncio.Event()
    async with asyncio.timeout(10):
        running = asyncio.create_task(Supervision([program.part], ManualClock(), said.append).run(stopped))
        await program.running.wait()
        stopped.set()
        await running
    assert program.starts == 3
    assert sum("the port is in use" in words for words in said) == 2


async def test_what_ends_again_and_again_is_given_up_and_ends_everything() -> None:
    program = Program()
    for _ in range(RESTARTS_MAX + 1):
        program.ends.put_nowait(Ended(3))
    reason, said = await supervised(program)
    assert "again and again" in reason and said[-1] == reason
    assert program.starts == RESTARTS_MAX


async def test_what_would_end_so_again_is_not_started_again() -> None:
    program = Program()
    program.ends.put_nowait(Ended(1, "This node was revoked.", final=True))
    reason, _said = await supervised(program)
    assert reason == "The engine room has ended: This node was revoked."
    assert program.starts == 0


async def test_a_part_that_is_not_needed_ends_alone() -> None:
    program = Program(needed=False)
    program.ends.put_nowait(Ended(1, "This node was revoked.", final=True))
    loop = asyncio.get_running_loop()
    reason, said = await supervised(program, lambda stopped: loop.call_later(0.1, stopped.set))
    assert reason == ""
    assert said == ["The engine room has ended: This node was revoked."]


def test_restarts_slow_down_and_are_forgotten_after_a_while() -> None:
    restarts = Restarts()
    pauses = [restarts.next_pause_s(100.0) for _ in range(RESTARTS_MAX + 1)]
    assert pauses[-1] is None
    assert pauses[:-1] == sorted(pause for pause in pauses if pause is not None)
    assert restarts.next_pause_s(100.0 + RESTARTS_WITHIN_S) == pauses[0]


# --- children ----------------------------------------------------------------------------------------


async def child(*arguments: str) -> Child:
    made = Child("helper", arguments, {})
    async with asyncio.timeout(30):
        await made.start()
    return made


async def test_a_child_that_gives_up_is_told_in_its_own_words(tmp_path) -> None:
    made = await child("agent", "--home", str(tmp_path))
    async with asyncio.timeout(30):
        with pytest.raises(SettingsError, match="has not joined"):
            await made.until("running")
        assert await made.wait() == 1
    assert made.failure["final"] is True
    assert str(tmp_path) in made.failure["message"]


async def test_a_child_that_says_nothing_is_told_too() -> None:
    made = await child("no-such-command")
    async with asyncio.timeout(30):
        with pytest.raises(SettingsError, match="helper ended at its start"):
            await made.until("ready")
        await made.stop(1.0)


async def test_one_of_several_that_is_given_up_ends_nothing_and_the_last_one_does() -> None:
    both = [Program(), Program()]
    for each in both:
        each.part.kind = "engine rooms"
    said: list[str] = []
    stopped = asyncio.Event()
    async with asyncio.timeout(10):
        running = asyncio.create_task(
            Supervision([each.part for each in both], ManualClock(), said.append).run(stopped)
        )
        both[0].ends.put_nowait(Ended(1, "no longer", final=True))
        while not said:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not running.done()
        both[1].ends.put_nowait(Ended(1, "nor this", final=True))
        assert "nor this" in await running
