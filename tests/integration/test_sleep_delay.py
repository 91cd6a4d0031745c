"""The machine's sleep waits until running answers moved on, and never longer: against dbusmock's logind."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from panal.core.clock import SystemClock
from panal.node.hardware.bus_calls import BusCalls
from panal.node.hardware.sleep_delay import HELD_SHARE_MAX, SleepDelay
from tests.support.dbus_mocks import MOCK, MockedBus, mocked_bus

LOGIND, MANAGER_PATH = "org.freedesktop.login1", "/org/freedesktop/login1"
MANAGER = "org.freedesktop.login1.Manager"


@pytest.fixture
def bus() -> Iterator[MockedBus]:
    with mocked_bus() as made:
        yield made


@contextlib.asynccontextmanager
async def delaying(bus: MockedBus) -> AsyncIterator[SleepDelay]:
    clock = SystemClock()
    calls = BusCalls("system bus", bus.address, clock, descriptors=True)
    delay = SleepDelay(calls, clock)
    task = asyncio.get_running_loop().create_task(delay.run())
    try:
        yield delay
    finally:
        task.cancel()
        await asyncio.wait({task})
        calls.close()


async def inhibitors(bus: MockedBus) -> list[Any]:
    """(what, who, why, mode) of those that logind knows."""
    calls = BusCalls("system bus", bus.address, SystemClock())
    try:
        (listed,) = await calls.ask(LOGIND, MANAGER_PATH, MANAGER, "ListInhibitors")
    finally:
        calls.close()
    return [tuple(each[:4]) for each in listed]


async def until_held(bus: MockedBus, held: bool) -> None:
    async with asyncio.timeout(30):
        while bool(await inhibitors(bus)) is not held:
            await asyncio.sleep(0.05)


async def set_limit(bus: MockedBus, limit_us: int) -> None:
    add = ("AddProperty", "ssv", MANAGER, "InhibitDelayMaxUSec", limit_us)
    await asyncio.to_thread(lambda: bus.call(LOGIND, MANAGER_PATH, MOCK, *add))


async def prepare(bus: MockedBus, sleep: bool) -> None:
    emit = ("EmitSignal", "sssav", MANAGER, "PrepareForSleep", "b", [sleep])
    await asyncio.to_thread(lambda: bus.call(LOGIND, MANAGER_PATH, MOCK, *emit))


async def test_sleep_waits_for_the_hand_over_and_no_longer(bus: MockedBus) -> None:
    await asyncio.to_thread(bus.logind)
    await set_limit(bus, 600_000_000)
    async with delaying(bus) as delay:
        await until_held(bus, True)
        ((what, _who, why, mode),) = await inhibitors(bus)
        assert (what, mode) == ("sleep", "delay"), "it never keeps the machine awake"
        assert "secret" not in why
        delay.machine_is_back(True)  # said before it was asked: of no meaning
        await prepare(bus, True)
        for _ in range(10):
            delay.machine_is_back(False)
            await asyncio.sleep(0.05)
        assert await inhibitors(bus), "an answer still runs"
        delay.machine_is_back(True)
        await until_held(bus, False)
        await prepare(bus, False)
        await until_held(bus, True)
    await until_held(bus, False)


async def test_a_hand_over_that_takes_too_long_is_cut_off_within_logind_s_own_limit(bus: MockedBus) -> None:
    await asyncio.to_thread(bus.logind)
    await set_limit(bus, 1_500_000)
    async with delaying(bus) as delay:
        await until_held(bus, True)
        begun_s = SystemClock().monotonic_seconds()
        await prepare(bus, True)
        await until_held(bus, False)
        assert not delay.held
        assert SystemClock().monotonic_seconds() - begun_s >= 1.5 * HELD_SHARE_MAX, "it was given its time"


async def test_without_logind_nothing_is_held_and_nothing_fails() -> None:
    clock = SystemClock()
    delay = SleepDelay(BusCalls("system bus", "unix:path=/nowhere/bus", clock, descriptors=True), clock)
    task = asyncio.get_running_loop().create_task(delay.run())
    await asyncio.sleep(0.1)
    assert not task.done()
    assert not delay.held
    task.cancel()
    await asyncio.wait({task})
