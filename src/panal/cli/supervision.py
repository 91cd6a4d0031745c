"""Keeps the programs of an installation running: what ends by itself comes back, a few times."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from panal.cli.children import Child, Restarts
from panal.core.clock import Clock
from panal.core.errors import SettingsError

READY_S_MAX = 120.0


@dataclass(frozen=True)
class Ended:
    """How a program ended. ``words``: its own, where it said why; ``final``: it would end so again."""

    status: int
    words: str = ""
    final: bool = False

    def __str__(self) -> str:
        return self.words or f"status {self.status}"


@dataclass
class Part:
    """A program to be kept running. ``start`` raises SettingsError, and leaves nothing, when it fails.

    ``needed``: without it nothing works, so that giving it up ends everything; of parts with the same
    ``kind``, giving up the last one.
    """

    name: str
    start: Callable[[], Awaitable[None]]
    ended: Callable[[], Awaitable[Ended]]
    needed: bool = True
    kind: str = ""
    restarts: Restarts = field(default_factory=Restarts)


def part_of(child: Child, ready: str, *, needed: bool, kind: str = "") -> Part:
    """A child to be kept running; it is there when it has said ``ready``, or that it waits for another."""

    async def start() -> None:
        await child.start()
        try:
            async with asyncio.timeout(READY_S_MAX):
                await child.until(ready, "waiting")
        except TimeoutError:
            await child.stop(0.0)
            raise SettingsError(f"It was not ready within {READY_S_MAX:.0f} s.") from None

    async def ended() -> Ended:
        status = await child.wait()
        return Ended(status, child.failure.get("message", ""), bool(child.failure.get("final")))

    return Part(child.name, start, ended, needed, kind)


class Supervision:
    """``notice`` is told in words of every end and every return."""

    def __init__(self, parts: Sequence[Part], clock: Clock, notice: Callable[[str], None]) -> None:
        self._parts = parts
        self._clock = clock
        self._notice = notice

    async def run(self, stopped: asyncio.Event) -> str:
        """Until ``stopped``, or until a needed part was given up. Returns why, empty for the former."""
        given_up = asyncio.get_running_loop().create_future()
        left = Counter(part.kind or part.name for part in self._parts if part.needed)

        async def keep(part: Part) -> None:
            reason = await self._keep(part)
            left[part.kind or part.name] -= 1
            if part.needed and not left[part.kind or part.name] and not given_up.done():
                given_up.set_result(reason)

        async with asyncio.TaskGroup() as group:
            keepers = [group.create_task(keep(part), name=f"keep {part.name}") for part in self._parts]
            stopping = group.create_task(stopped.wait(), name="until stopped")
            await asyncio.wait({stopping, given_up}, return_when=asyncio.FIRST_COMPLETED)
            for task in (*keepers, stopping):
                task.cancel()
        return str(given_up.result()) if given_up.done() else ""

    async def _keep(self, part: Part) -> str:
        """Returns, in words, why the part was given up."""
        while True:
            ended = await part.ended()
            reason = await self._bring_back(part, ended)
            if reason:
                self._notice(reason)
                return reason

    async def _bring_back(self, part: Part, ended: Ended) -> str:
        """Empty once it runs again, else why it never will."""
        while True:
            if ended.final:
                return f"The {part.name} has ended: {ended}"
            pause_s = part.restarts.next_pause_s(self._clock.monotonic_seconds())
            if pause_s is None:
                return f"The {part.name} ends again and again ({ended}) and is not started any more."
            self._notice(f"The {part.name} has ended ({ended}); it is started again in {pause_s:g} s.")
            await asyncio.sleep(pause_s)
            try:
                await part.start()
            except SettingsError as error:
                ended = replace(await part.ended(), words=error.message)
                continue
            self._notice(f"The {part.name} runs again.")
            return ""
