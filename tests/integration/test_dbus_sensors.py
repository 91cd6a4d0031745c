"""Sensors over D-Bus, against python-dbusmock: logind, UPower, GNOME, KDE; and what happens when they go."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from panal.core.clock import SystemClock
from panal.node.hardware.bus_calls import BusCalls, session_address
from panal.node.hardware.desktop_input import DesktopInput
from panal.node.hardware.desktop_session import KeptOn
from panal.node.hardware.idle import Idle, Unknown
from panal.node.hardware.surroundings import Place, Surroundings
from panal.policy.desk_limits import Limits
from panal.policy.signs import People, Signs
from tests.support.dbus_mocks import MOCK, MockedBus, mocked_bus

LOGIND, MANAGER_PATH = "org.freedesktop.login1", "/org/freedesktop/login1"
SESSION, MANAGER = "org.freedesktop.login1.Session", "org.freedesktop.login1.Manager"
MINE, OTHER = os.getuid(), os.getuid() + 1


@pytest.fixture
def bus() -> Iterator[MockedBus]:
    with mocked_bus() as made:
        yield made


@asynccontextmanager
async def surroundings(bus: MockedBus, tmp_path: Path) -> AsyncIterator[Surroundings]:
    clock = SystemClock()
    environment = bus.environment
    session = BusCalls("session bus", session_address(environment), clock)
    place = Place("linux", environment, True, tmp_path, 0, 0, session)
    made = Surroundings(place, clock, Limits, lambda: ())
    task = asyncio.get_running_loop().create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait({task})
        session.close()


async def until(found: Surroundings, true: Callable[[Signs], bool]) -> Signs:
    """Within the time that a sensor may take, and a slow machine."""
    async with asyncio.timeout(40):
        while not true(signs := found.signs(over_limit=False)):
            await asyncio.sleep(0.05)
    return signs


def add_session(bus: MockedBus, name: str, uid: int, seat: str = "seat0", *, active: bool = True) -> str:
    bus.call(LOGIND, MANAGER_PATH, MOCK, "AddSession", "ssusb", name, seat, uid, "somebody", active)
    return f"/org/freedesktop/login1/session/{name}"


def update(bus: MockedBus, path: str, interface: str, **values: Any) -> None:
    bus.call(LOGIND, path, MOCK, "UpdateProperties", "sa{sv}", interface, values)


async def off(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The mock answers us while we are asked: keep the loop free."""
    return await asyncio.to_thread(lambda: function(*arguments, **named))


async def test_logind_tells_login_lock_and_logout(bus: MockedBus, tmp_path: Path) -> None:
    await off(bus.logind)
    async with surroundings(bus, tmp_path) as found:
        await until(found, lambda signs: signs.people is People.NOBODY)
        path = await off(add_session, bus, "c1", MINE)
        await until(found, lambda signs: signs.people is People.HERE)
        await off(update, bus, path, SESSION, LockedHint=True)
        signs = await until(found, lambda signs: signs.people is People.LOCKED)
        assert signs.busy is False
        await off(update, bus, path, SESSION, LockedHint=False)
        await until(found, lambda signs: signs.people is People.HERE)
        assert found.words()["sessions (logind)"] == "somebody logged in"


async def test_somebody_else_at_the_machine_is_an_owner_that_our_session_cannot_see(
    bus: MockedBus, tmp_path: Path
) -> None:
    await off(bus.logind)
    mine = await off(add_session, bus, "c1", MINE)
    async with surroundings(bus, tmp_path) as found:
        await until(found, lambda signs: signs.people is People.HERE and signs.busy is False)
        await off(update, bus, mine, SESSION, Active=False, State="online")
        await until(found, lambda signs: signs.people is People.LOCKED)
        await off(add_session, bus, "c2", OTHER)
        await until(found, lambda signs: signs.busy is True)


async def test_a_remote_desktop_is_an_owner_at_work(bus: MockedBus, tmp_path: Path) -> None:
    await off(bus.logind)
    path = await off(add_session, bus, "r1", MINE, seat="seat9")
    await off(update, bus, path, SESSION, Remote=True)
    async with surroundings(bus, tmp_path) as found:
        await until(found, lambda signs: signs.busy is True)
        assert found.signs(over_limit=False).people is People.NOBODY


async def test_going_to_sleep_is_known_from_the_signal(bus: MockedBus, tmp_path: Path) -> None:
    await off(bus.logind)
    async with surroundings(bus, tmp_path) as found:
        await until(found, lambda signs: signs.people is People.NOBODY and not signs.leaving)
        await off(update, bus, MANAGER_PATH, MANAGER, PreparingForSleep=True)
        emit = ("EmitSignal", "sssav", MANAGER, "PrepareForSleep", "b", [True])
        await off(bus.call, LOGIND, MANAGER_PATH, MOCK, *emit)
        await until(found, lambda signs: signs.leaving)
        await off(update, bus, MANAGER_PATH, MANAGER, PreparingForSleep=False)
        emit = ("EmitSignal", "sssav", MANAGER, "PrepareForSleep", "b", [False])
        await off(bus.call, LOGIND, MANAGER_PATH, MOCK, *emit)
        await until(found, lambda signs: not signs.leaving)


async def test_a_call_or_a_film_that_keeps_the_screen_on_counts(bus: MockedBus, tmp_path: Path) -> None:
    from dbus_fast import Message
    from dbus_fast.aio import MessageBus

    await off(bus.logind)
    caller = await MessageBus(bus_address=bus.address, negotiate_unix_fd=True).connect()
    async with surroundings(bus, tmp_path) as found:
        await until(found, lambda signs: signs.people is People.NOBODY and signs.busy is False)
        answer = await caller.call(
            Message(
                destination=LOGIND, path=MANAGER_PATH, interface=MANAGER, member="Inhibit",
                signature="ssss", body=["idle:sleep", "Film player", "a secret title", "block"],
            )
        )  # fmt: skip
        assert answer is not None
        await until(found, lambda signs: signs.busy is True)
        words = " ".join(found.words().values())
        assert "secret" not in words
        assert "Film" not in words
        for descriptor in answer.unix_fds:
            os.close(descriptor)
    caller.disconnect()


async def test_gnome_and_kde_tell_that_the_screen_is_kept_on(bus: MockedBus) -> None:
    gnome, path = "org.gnome.SessionManager", "/org/gnome/SessionManager"
    await off(bus.mock, gnome, path, gnome, name=gnome)
    await off(bus.add_method, gnome, path, gnome, "IsInhibited", "u", "b", "ret = args[0] == 8")
    calls = BusCalls("session bus", bus.address, SystemClock())
    assert await KeptOn(calls).look() is True
    calls.close()


async def test_upower_tells_battery_and_mains(bus: MockedBus, tmp_path: Path) -> None:
    upower, path = "org.freedesktop.UPower", "/org/freedesktop/UPower"
    await off(bus.upower)
    async with surroundings(bus, tmp_path) as found:
        await until(found, lambda signs: signs.on_battery is False)
        update = (MOCK, "UpdateProperties", "sa{sv}", upower, {"OnBattery": True})
        await off(bus.call, upower, path, *update)
        await until(found, lambda signs: signs.on_battery is True)
        assert found.words()["power"] == "battery"


async def test_a_logind_that_vanishes_counts_as_an_owner_who_cannot_be_seen(
    bus: MockedBus, tmp_path: Path
) -> None:
    mock = await off(bus.logind)
    async with surroundings(bus, tmp_path) as found:
        await until(found, lambda signs: signs.people is People.NOBODY)
        mock.terminate()
        signs = await until(found, lambda signs: signs.people is People.UNKNOWN)
        assert signs.busy is None
        assert found.words()["sessions (logind)"].startswith("unknown")
        await off(bus.logind)
        await until(found, lambda signs: signs.people is People.NOBODY and signs.busy is False)


async def test_without_any_bus_nothing_is_claimed_and_nothing_blocks(tmp_path: Path) -> None:
    nowhere = MockedBus(f"unix:path={tmp_path / 'no-bus'}")
    async with surroundings(nowhere, tmp_path) as found:
        await until(found, lambda _signs: "there is no system bus" in found.words()["sessions (logind)"])
        signs = found.signs(over_limit=False)
        assert (signs.people, signs.busy, signs.leaving) == (People.UNKNOWN, False, False)


# --- input -------------------------------------------------------------------------------------------


@asynccontextmanager
async def desktop_input(bus: MockedBus, **environment: str) -> AsyncIterator[DesktopInput]:
    clock = SystemClock()
    calls = BusCalls("session bus", bus.address, clock)
    sensor = DesktopInput(environment, clock, calls, lambda: Unknown("no logind"), poll_s=0.05)
    task = asyncio.get_running_loop().create_task(sensor.run())
    try:
        yield sensor
    finally:
        task.cancel()
        await asyncio.wait({task})
        sensor.close()
        calls.close()


async def until_idle(sensor: DesktopInput, low_s: float, high_s: float) -> None:
    async with asyncio.timeout(40):
        while True:
            found = sensor.read()
            if isinstance(found, Idle) and low_s <= found.seconds <= high_s:
                return
            await asyncio.sleep(0.02)


def since(then_s: float, factor: int) -> str:
    return f"ret = int((__import__('time').time() - {then_s}) * {factor})"


async def test_gnome_s_idle_time_is_found_when_it_appears_and_unknown_when_it_goes(bus: MockedBus) -> None:
    mutter, path = "org.gnome.Mutter.IdleMonitor", "/org/gnome/Mutter/IdleMonitor/Core"
    async with desktop_input(bus, WAYLAND_DISPLAY="wayland-0") as sensor:
        await asyncio.sleep(0.1)
        assert isinstance(sensor.read(), Unknown)
        mock = await off(bus.mock, mutter, path, mutter, name=mutter)
        then_s = time.time() - 1000
        await off(bus.add_method, mutter, path, mutter, "GetIdletime", "", "t", since(then_s, 1000))
        await until_idle(sensor, 1000, 1100)
        assert sensor.name == "GNOME"
        await off(bus.add_method, mutter, path, mutter, "GetIdletime", "", "t", since(time.time(), 1000))
        await until_idle(sensor, 0, 60)
        mock.terminate()
        async with asyncio.timeout(40):
            while isinstance(sensor.read(), Idle):
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(("factor", "unit"), [(1, "seconds"), (1000, "milliseconds")])
async def test_the_screen_saver_s_unit_is_learnt_from_its_growth(
    bus: MockedBus, factor: int, unit: str
) -> None:
    saver, path = "org.freedesktop.ScreenSaver", "/org/freedesktop/ScreenSaver"
    await off(bus.mock, saver, path, saver, name=saver)
    then_s = time.time() - 500
    await off(bus.add_method, saver, path, saver, "GetSessionIdleTime", "", "u", since(then_s, factor))
    async with desktop_input(bus, WAYLAND_DISPLAY="wayland-0") as sensor:
        await until_idle(sensor, 500, 600)
        assert sensor.name == "freedesktop screen saver"
