"""Input idle time on a Linux desktop: finds the source that this session has, and finds it again.

In this order, the first that answers: the X server's screen saver extension, GNOME's Mutter, the
freedesktop screen saver (KDE), and logind's hint for machines where only that is there. A source that fell
silent for LOST_S is given up and all are tried again, so that a session that begins later is found.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from math import inf
from typing import Protocol

from panal.core.clock import Clock
from panal.node.hardware.bus_calls import BusCalls
from panal.node.hardware.idle import Idle, IdleSensor, Unknown
from panal.node.hardware.idle_x11 import X11Idle
from panal.node.hardware.logind import SessionFacts
from panal.node.hardware.watcher import Blind

FRESH_S = 1.0
LOST_S = 5.0
FIND_EACH_S = 2.0
UNIT_SPAN_S = 1.5
UNITS_S = {"seconds": 1.0, "milliseconds": 0.001}


class InputSource(Protocol):
    """One way to ask for the idle time without blocking."""

    name: str

    async def idle_s(self) -> float:
        """Raises Blind."""
        ...


class MutterIdle:
    """GNOME, on X11 and Wayland: milliseconds since the last input in this session."""

    name = "GNOME"

    def __init__(self, bus: BusCalls) -> None:
        self._bus = bus

    async def idle_s(self) -> float:
        interface = "org.gnome.Mutter.IdleMonitor"
        (ms,) = await self._bus.ask(interface, "/org/gnome/Mutter/IdleMonitor/Core", interface, "GetIdletime")
        return float(ms) / 1000


class ScreenSaverIdle:
    """KDE and others. Some versions answer in seconds and some in milliseconds: which, its growth tells."""

    name = "freedesktop screen saver"

    def __init__(self, bus: BusCalls, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._unit_s: float | None = None
        self._first: tuple[float, float] | None = None

    async def idle_s(self) -> float:
        interface = "org.freedesktop.ScreenSaver"
        (count,) = await self._bus.ask(
            interface, "/org/freedesktop/ScreenSaver", interface, "GetSessionIdleTime"
        )
        if self._unit_s is None:
            self._learn(float(count))
        if self._unit_s is None:
            raise Blind("its unit is not known yet")
        return float(count) * self._unit_s

    def _learn(self, count: float) -> None:
        now_s = self._clock.monotonic_seconds()
        if self._first is None or count < self._first[1]:
            self._first = (now_s, count)
            return
        span_s = now_s - self._first[0]
        if span_s < UNIT_SPAN_S:
            return
        rate = (count - self._first[1]) / span_s
        self._unit_s = next((unit for unit in UNITS_S.values() if 0.3 <= rate * unit <= 2.0), None)
        self._first = (now_s, count)


class HintedIdle:
    """logind's hint: some desktops never set it, and then nobody is ever idle."""

    name = "logind's hint"

    def __init__(self, sessions: Callable[[], SessionFacts | Unknown]) -> None:
        self._sessions = sessions

    async def idle_s(self) -> float:
        found = self._sessions()
        if isinstance(found, Unknown):
            raise Blind(found.reason)
        if found.idle_s is None:
            raise Blind("nobody is at the machine")
        return found.idle_s


class DesktopInput:
    """An IdleSensor with a life of its own: ``run`` asks, ``read`` gives the newest answer at once."""

    def __init__(
        self,
        environment: Mapping[str, str],
        clock: Clock,
        bus: BusCalls,
        sessions: Callable[[], SessionFacts | Unknown],
        *,
        poll_s: float = 0.25,
    ) -> None:
        self._environment = dict(environment)
        self._clock = clock
        self._sessions = sessions
        self._poll_s = poll_s
        self._sources: list[InputSource] = [
            MutterIdle(bus), ScreenSaverIdle(bus, clock), HintedIdle(sessions)
        ]  # fmt: skip
        self._x11: IdleSensor | None = None
        self._display = ""
        self._source: InputSource | None = None
        self._touched_s = 0.0
        self._told_s = -inf
        self._answered_s = -inf
        self._problem = "no source of input times was found yet"
        self._log = logging.getLogger("panal.node.owner")

    @property
    def name(self) -> str:
        """Which source is asked."""
        if self._x11 is not None:
            return "X11"
        return self._source.name if self._source is not None else "none"

    def read(self) -> Idle | Unknown:
        if self._x11 is not None:
            found = self._x11.read()
            if isinstance(found, Idle):
                self._answered_s = self._clock.monotonic_seconds()
            return found
        now_s = self._clock.monotonic_seconds()
        if self._source is None or now_s - self._told_s > FRESH_S:
            return Unknown(self._problem)
        return Idle(max(0.0, now_s - self._touched_s))

    def close(self) -> None:
        if self._x11 is not None:
            self._x11.close()

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            lost = self._clock.monotonic_seconds() - self._answered_s > LOST_S
            if self._source is not None and not await self._ask(self._source) and lost:
                self._choose(None)
            if self._source is None and lost:
                await self._find()
            wait_s = self._poll_s if self._source is not None else FIND_EACH_S
            await asyncio.sleep(wait_s)

    async def _find(self) -> None:
        if self._found_x11():
            return
        for source in self._sources:
            if await self._ask(source):
                self._choose(source)
                return

    def _choose(self, source: InputSource | None) -> None:
        self._source = source
        if source is not None:
            self._log.info("input is seen through %s", source.name)

    def _found_x11(self) -> bool:
        """Whether the X server of this session answers; on Wayland it sees only the input of old programs."""
        wayland = self._environment.get("WAYLAND_DISPLAY") or (
            self._environment.get("XDG_SESSION_TYPE") == "wayland"
        )
        sessions = self._sessions()
        told = sessions.display if isinstance(sessions, SessionFacts) else ""
        display = self._environment.get("DISPLAY") or told
        if wayland or not display:
            self._drop_x11()
            return False
        if self._x11 is None or display != self._display:
            self._drop_x11()
            self._x11 = X11Idle({**self._environment, "DISPLAY": display}, self._clock)
            self._display = display
        found = self._x11.read()
        if isinstance(found, Idle):
            self._answered_s = self._clock.monotonic_seconds()
            return True
        self._problem = found.reason
        self._drop_x11()
        return False

    def _drop_x11(self) -> None:
        if self._x11 is not None:
            self._x11.close()
            self._x11 = None

    async def _ask(self, source: InputSource) -> bool:
        asked_s = self._clock.monotonic_seconds()
        try:
            idle_s = await source.idle_s()
        except Blind as error:
            self._problem = f"{source.name}: {error}"
            return False
        except Exception as error:  # noqa: BLE001 - a strange answer means an owner at work, not a dead agent
            self._problem = f"{source.name} failed: {type(error).__name__}"
            return False
        now_s = self._clock.monotonic_seconds()
        self._touched_s = (asked_s + now_s) / 2 - idle_s
        self._told_s = self._answered_s = now_s
        return True
