"""A start is tried again while something is away, and ends at once where that would be in vain."""

import asyncio
import ssl
from contextlib import AsyncExitStack
from typing import Any

import pytest

from panal.bus.nats_connection import Refused
from panal.cli.patience import unless, when_there
from panal.core.errors import BusError, PanalError, SettingsError, StoreError


class Porch:
    """In the vestibule's place."""

    def __init__(self) -> None:
        self.causes: list[PanalError] = []
        self.closed = 0

    async def open(self, cause: PanalError) -> None:
        self.causes.append(cause)

    async def close(self) -> None:
        self.closed += 1


class Start:
    """Raises ``failures`` one after the other, then works. ``events`` says what was opened and closed."""

    def __init__(self, *failures: PanalError) -> None:
        self._failures = list(failures)
        self.events: list[str] = []
        self.told: list[str] = []
        self.porch: Any = Porch()

    async def build(self, stack: AsyncExitStack) -> str:
        self.events.append("open")
        stack.callback(self.events.append, "close")
        if self._failures:
            raise self._failures.pop(0)
        return "made"

    async def run(self, stack: AsyncExitStack) -> str:
        return await when_there(self.build, stack, self.porch, self.told.append, lambda: 0.0)


async def test_it_is_tried_until_all_is_there_and_what_failed_tries_opened_is_closed() -> None:
    start = Start(StoreError("no database"), StoreError("still none"), BusError("no bus"))
    async with AsyncExitStack() as stack:
        assert await start.run(stack) == "made"
        assert start.events == ["open", "close"] * 3 + ["open"]
        assert start.porch.closed == 1, "before the gateway itself listens"
    assert start.events == ["open", "close"] * 4
    assert [cause.code for cause in start.porch.causes] == ["store_unavailable"] * 2 + ["bus_unavailable"]
    assert all(cause.retry_after_s for cause in start.porch.causes)
    assert len(start.told) == 2 and "no database" in start.told[0] and "no bus" in start.told[1]


@pytest.mark.parametrize(
    "cause", [Refused("a stranger"), ssl.SSLCertVerificationError("self-signed certificate")]
)
async def test_a_bus_that_takes_us_for_a_stranger_is_not_waited_for(cause: Exception) -> None:
    error = BusError("The bus cannot be reached.")
    error.__cause__ = cause
    start = Start(error)
    async with AsyncExitStack() as stack:
        with pytest.raises(SettingsError, match="host import"):
            await start.run(stack)
    assert start.events == ["open", "close"]


async def test_wrong_settings_are_not_waited_for() -> None:
    start = Start(SettingsError("of another kind"))
    async with AsyncExitStack() as stack:
        with pytest.raises(SettingsError, match="of another kind"):
            await start.run(stack)
    assert start.events == ["open", "close"] and start.porch.causes == []


async def test_waiting_ends_when_it_is_told_to_and_leaves_nothing_open() -> None:
    stopped = asyncio.Event()
    start = Start(*(StoreError("away") for _ in range(100)))

    def told(words: str) -> None:
        stopped.set()

    async with AsyncExitStack() as stack:
        waiting = when_there(start.build, stack, start.porch, told, lambda: 0.0)
        async with asyncio.timeout(10):
            assert await unless(stopped, waiting) is None
    assert start.events.count("open") == start.events.count("close") >= 1


async def test_an_error_passes_through_while_nobody_stops() -> None:
    async def fails() -> None:
        raise StoreError("away")

    with pytest.raises(StoreError):
        await unless(asyncio.Event(), fails())
