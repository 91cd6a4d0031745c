"""Looks through one sensor again and again, in bounded time, and keeps its last word."""

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import Generic, Protocol, TypeVar

from panal.core.clock import Clock
from panal.node.hardware.aside import StillBusy
from panal.node.hardware.idle import Unknown

LOOK_S_MAX = 1.0
STALE_S = 10.0

T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")


class Blind(Exception):
    """A sensor cannot tell; the text is for ``panal desk status`` and free of names and times."""


class Sensor(Protocol[T_co]):
    """One thing that can be seen of a machine."""

    @property
    def name(self) -> str: ...

    @property
    def each_s(self) -> float:
        """Time between two looks."""
        ...

    async def look(self) -> T_co:
        """Raises Blind, or anything else where it is broken. Never blocks the event loop."""
        ...


class Watcher(Generic[S]):
    """``describe`` puts a value into words for the owner; the words stay on this machine."""

    def __init__(self, sensor: Sensor[S], clock: Clock, describe: Callable[[S], str]) -> None:
        self._sensor = sensor
        self._clock = clock
        self._describe = describe
        self._value: S | None = None
        self._told_s = -inf
        self._problem = "not asked yet"
        self._again = asyncio.Event()
        self._log = logging.getLogger("panal.node.owner")
        self.found = False
        """Whether it ever told something: then silence is a failure and not an absence."""

    @property
    def name(self) -> str:
        return self._sensor.name

    def now(self) -> S | Unknown:
        """Its last word, Unknown when that is too old."""
        age_s = self._clock.monotonic_seconds() - self._told_s
        if self._value is None or age_s > max(STALE_S, 2.5 * self._sensor.each_s):
            return Unknown(self._problem or "silent")
        return self._value

    def word(self) -> str:
        value = self.now()
        if isinstance(value, Unknown):
            return f"unknown: {value.reason}" if self.found else f"not there: {value.reason}"
        return self._describe(value)

    def nudge(self) -> None:
        """Something changed: look now."""
        self._again.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._again.clear()
            await self.look()
            try:
                async with asyncio.timeout(self._sensor.each_s):
                    await self._again.wait()
            except TimeoutError:
                continue

    async def look(self) -> None:
        """One look; whatever goes wrong is its problem, in words."""
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                value = await self._sensor.look()
        except (Blind, StillBusy) as error:
            self._failed(str(error))
        except TimeoutError:
            self._failed("no answer in time")
        except Exception as error:  # noqa: BLE001 - a broken sensor means an owner at work, not a dead agent
            self._failed(f"the sensor failed: {type(error).__name__}")
        else:
            self._value, self._told_s, self._problem, self.found = (
                value,
                self._clock.monotonic_seconds(),
                "",
                True,
            )

    def _failed(self, problem: str) -> None:
        if problem != self._problem and self.found:
            self._log.info("the sensor %s cannot tell: %s", self.name, problem)
        self._problem = problem
