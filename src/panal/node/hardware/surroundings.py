"""All sensors beside the input's and the GPU's, watched together and put into one value for the policy.

A sensor that never answered is shown as absent and does not count. One that answered and fell silent counts
as an owner at work, where it is one that says so.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from panal.core.clock import Clock
from panal.node.hardware.bus_calls import BusCalls, system_address
from panal.node.hardware.desktop_session import KeptOn
from panal.node.hardware.disk import Disk
from panal.node.hardware.idle import Unknown
from panal.node.hardware.logind import Logind, SessionFacts
from panal.node.hardware.power import Power
from panal.node.hardware.programs import Programs
from panal.node.hardware.sleep_delay import SleepDelay
from panal.node.hardware.terminals import TerminalFacts, Terminals
from panal.node.hardware.watcher import Watcher
from panal.policy.desk_limits import Limits, allowed_now
from panal.policy.hours import Hours
from panal.policy.signs import People, Signs

MEMORY_EACH_S = 2.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where the agent runs. ``session_bus`` None: there is no D-Bus on this system."""

    platform: str
    environment: Mapping[str, str]
    owned: bool
    weights: Path
    disk_free_bytes_min: int
    weights_bytes_max: int
    session_bus: BusCalls | None


class Surroundings:
    """``limits`` gives what holds now; ``own_pids`` are the agent's and its engine's."""

    def __init__(
        self,
        place: Place,
        clock: Clock,
        limits: Callable[[], Limits],
        own_pids: Callable[[], Collection[int]],
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._hours: tuple[tuple[str, ...], Sequence[Hours]] = ((), ())
        self._memory: tuple[float, float] = (-MEMORY_EACH_S, 0.0)
        linux = place.platform.startswith("linux")
        self._system_bus: BusCalls | None = None
        if linux:
            address = system_address(place.environment)
            self._system_bus = BusCalls("system bus", address, clock, descriptors=True)
        self._power = Watcher(Power(self._system_bus), clock, lambda on: "battery" if on else "mains")
        self._disk = Watcher(
            Disk(place.weights, place.disk_free_bytes_min, place.weights_bytes_max),
            clock,
            lambda short: "too full" if short else "room enough",
        )
        self._watchers: list[Watcher[Any]] = [self._power, self._disk]
        self._logind: Logind | None = None
        self._sessions: Watcher[SessionFacts] | None = None
        self._sleep_delay: SleepDelay | None = None
        if self._system_bus is not None:
            user = os.getuid() if hasattr(os, "getuid") else -1
            self._logind = Logind(self._system_bus, user, clock)
            self._sessions = Watcher(self._logind, clock, SessionFacts.words)
            self._logind.on_signal = self._sessions.nudge
            self._watchers.append(self._sessions)
            self._sleep_delay = SleepDelay(self._system_bus, clock)
        self._terminals: Watcher[TerminalFacts] | None = None
        self._programs: Watcher[tuple[str, ...]] | None = None
        self._kept_on: Watcher[bool] | None = None
        if place.owned:
            self._watch_the_owner(place, own_pids)

    def _watch_the_owner(self, place: Place, own_pids: Callable[[], Collection[int]]) -> None:
        programs = Programs(lambda: self._limits().programs, own_pids)
        self._programs = Watcher(programs, self._clock, lambda found: ", ".join(found) or "none of them runs")
        self._watchers.append(self._programs)
        if os.name == "posix":
            self._terminals = Watcher(Terminals(self._clock), self._clock, TerminalFacts.words)
            self._watchers.append(self._terminals)
        if place.session_bus is not None:
            self._kept_on = Watcher(
                KeptOn(place.session_bus), self._clock, lambda kept: "kept on" if kept else "may go dark"
            )
            self._watchers.append(self._kept_on)

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for watcher in self._watchers:
                    group.create_task(watcher.run(), name=f"sensor {watcher.name}")
                if self._sleep_delay is not None:
                    group.create_task(self._sleep_delay.run(), name="sleep delay")
        finally:
            if self._system_bus is not None:
                self._system_bus.close()

    def machine_is_back(self, back: bool) -> None:
        """Told at each poll: nothing of ours runs on the machine, so it may sleep at once."""
        if self._sleep_delay is not None:
            self._sleep_delay.machine_is_back(back)

    def sessions(self) -> SessionFacts | Unknown:
        """What logind last said."""
        if self._sessions is None:
            return Unknown("this system has no logind")
        return self._sessions.now()

    def words(self) -> dict[str, str]:
        """Each sensor's word, for the owner's eyes."""
        return {watcher.name: watcher.word() for watcher in self._watchers}

    def signs(self, *, over_limit: bool, limits: Limits | None = None) -> Signs:
        """Everything as one value. Cheap; called at each poll, with the limits that hold now."""
        limits = limits if limits is not None else self._limits()
        now_s = self._clock.monotonic_seconds()
        sessions = self.sessions()
        terminals = self._terminals.now() if self._terminals is not None else None
        power, disk = self._power.now(), self._disk.now()
        return Signs(
            now_s=now_s,
            people=sessions.people if isinstance(sessions, SessionFacts) else People.UNKNOWN,
            remote_idle_s=terminals.idle_s if isinstance(terminals, TerminalFacts) else None,
            busy=self._busy(sessions),
            on_battery=None if isinstance(power, Unknown) and self._power.found else power is True,
            in_hours=not limits.closed and self._in_hours(limits.hours),
            disk_short=disk is True,
            leaving=self._logind is not None and self._logind.leaving,
            over_limit=over_limit,
            memory_free_share=self._memory_free_share(now_s),
        )

    def _busy(self, sessions: SessionFacts | Unknown) -> bool | None:
        """True beats None: what is seen counts more than what is not."""
        words: list[bool | None] = [
            _seen(self._programs, bool),
            _seen(self._kept_on, bool),
            _seen(self._terminals, lambda _facts: False),
        ]
        if isinstance(sessions, SessionFacts):
            words.append(sessions.other or sessions.remote or sessions.kept_awake)
        elif self._sessions is not None and self._sessions.found:
            words.append(None)
        return True if True in words else None if None in words else False

    def _in_hours(self, texts: tuple[str, ...]) -> bool:
        if texts != self._hours[0]:
            self._hours = (texts, [Hours(text) for text in texts])
        return not texts or allowed_now(self._hours[1], self._minute_of_week())

    def _minute_of_week(self) -> int:
        now = datetime.fromtimestamp(self._clock.utc_seconds(), UTC).astimezone()
        return now.weekday() * 1440 + now.hour * 60 + now.minute

    def _memory_free_share(self, now_s: float) -> float:
        if now_s - self._memory[0] >= MEMORY_EACH_S:
            memory = psutil.virtual_memory()
            self._memory = (now_s, memory.available / memory.total if memory.total else 0.0)
        return self._memory[1]


def _seen(watcher: Watcher[Any] | None, judged: Callable[[Any], bool]) -> bool | None:
    """What a sensor says; None where it fell silent; False where there is none."""
    if watcher is None:
        return False
    value = watcher.now()
    if isinstance(value, Unknown):
        return None if watcher.found else False
    return judged(value)
