"""The seam to the GPUs' drivers: readers that may fail or hang, and one thread that asks them."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import psutil

from panal.core.clock import Clock
from panal.core.gpus import GpuFacts, GpuReading

DEADLINE_S = 2.0


class NoDriver(Exception):
    """This machine has no such driver; an answer, no failure."""


class DriverFailed(Exception):
    """The driver is there and does not tell; the message is half a sentence."""


class GpuReader(Protocol):
    """One vendor's driver. Used from one thread only; any call may hang."""

    def read(self) -> Sequence[GpuFacts]:
        """All its GPUs now. Raises NoDriver, DriverFailed; a single GPU's faults are in its facts."""
        ...

    def close(self) -> None:
        """Let go of the driver. Never raises."""
        ...


Reply = Callable[[GpuReading], None]


class GpuProbe:
    """Asks the drivers in a thread of its own, so that a call that hangs holds up nothing else.

    At most one question is with the drivers at a time, and whoever asks meanwhile gets its answer too.
    The thread is a daemon: a hanging driver does not keep the program from ending.
    """

    def __init__(self, readers: Sequence[GpuReader], clock: Clock, *, deadline_s: float = DEADLINE_S) -> None:
        self._readers = readers
        self._clock = clock
        self._deadline_s = deadline_s
        self._questions: queue.SimpleQueue[tuple[frozenset[int], Reply] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending: asyncio.Future[GpuReading] | None = None
        self._asked_s = 0.0

    async def read(self, own: frozenset[int] = frozenset()) -> GpuReading:
        """One look, within the deadline. ``own`` are our engine's processes; their children are added."""
        if self._pending is None:
            self._ask(own)
        pending = self._pending
        assert pending is not None
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.shield(pending)
        except TimeoutError:
            return self._late(self._clock.monotonic_seconds())

    def _ask(self, own: frozenset[int]) -> None:
        loop = asyncio.get_running_loop()
        pending: asyncio.Future[GpuReading] = loop.create_future()

        def take(reading: GpuReading) -> None:
            self._pending = None
            if not pending.done():
                pending.set_result(reading)

        def reply(reading: GpuReading) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(take, reading)

        self._pending = pending
        self._asked_s = self._clock.monotonic_seconds()
        self._start()
        self._questions.put((own, reply))

    def close(self) -> None:
        """End the thread once its present call returns."""
        if self._thread is not None:
            self._questions.put(None)
            self._thread = None

    def _late(self, now_s: float) -> GpuReading:
        problem = f"the GPU's driver has not answered for {now_s - self._asked_s:.1f} s"
        return GpuReading(at_s=now_s, problem=problem, late=True)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="gpu probe", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (question := self._questions.get()) is not None:
            own, reply = question
            reply(read_now(self._readers, self._clock, own))
        for reader in self._readers:
            reader.close()


def read_now(readers: Sequence[GpuReader], clock: Clock, own: frozenset[int] = frozenset()) -> GpuReading:
    """Ask all readers here and now; it may hang. A vendor that fails beside one that answers has no GPUs."""
    found: list[GpuFacts] = []
    problems = []
    answered = False
    for reader in readers:
        try:
            found += reader.read()
            answered = True
        except NoDriver:
            continue
        except DriverFailed as error:
            problems.append(str(error))
        except Exception as error:  # noqa: BLE001 - whatever a driver's library does, the node lives on
            problems.append(f"the GPU's driver failed: {type(error).__name__}")
    tree = with_children(own) if found and own else own
    at_s = clock.monotonic_seconds()
    if problems and not found:
        return GpuReading(at_s=at_s, problem="; ".join(problems)[:300], own=tree)
    return GpuReading(at_s=at_s, gpus=tuple(found), no_driver=not answered and not problems, own=tree)


def with_children(pids: Collection[int]) -> frozenset[int]:
    """The processes and all that they started and that is still below them."""
    found = set(pids)
    for pid in pids:
        try:
            found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
        except psutil.Error:
            continue
    return frozenset(found)
