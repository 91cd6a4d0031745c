"""Typing in terminals and over ssh: the times at which terminals were read last.

Linux keeps those times to eight seconds only, so that nobody can count keys by them.
"""

from dataclasses import dataclass
from pathlib import Path

import psutil

from panal.core.clock import Clock


@dataclass(frozen=True, slots=True)
class TerminalFacts:
    """``idle_s`` None: there is no such session."""

    idle_s: float | None

    def words(self) -> str:
        return "no terminal session" if self.idle_s is None else "terminal sessions are open"


class Terminals:
    """A Sensor[TerminalFacts] over the system's list of who is logged in."""

    name = "terminals and ssh"
    each_s = 1.0

    def __init__(self, clock: Clock, devices: Path = Path("/dev")) -> None:
        self._clock = clock
        self._devices = devices

    async def look(self) -> TerminalFacts:
        """Some 0.1 ms on the event loop: one small file and the terminals, all of this machine."""
        now_s = self._clock.utc_seconds()
        idle = [
            _idle_s(self._devices, user.terminal, user.started, now_s)
            for user in psutil.users()
            if user.terminal and not user.terminal.startswith(":")
        ]
        return TerminalFacts(min(idle, default=None))


def _idle_s(devices: Path, terminal: str, started_s: float, now_s: float) -> float:
    """Since it was read last, at most since its login; a terminal that is not there was used just now."""
    device = devices / terminal
    try:
        if ".." in terminal:
            raise OSError
        touched_s = max(device.stat().st_atime, started_s)
    except OSError:
        return 0.0
    return max(0.0, now_s - touched_s)
