"""What happens to the nodes and to the rest, by a seeded chance; everything that happens ends again."""

import contextlib
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from panal.core.clock import SystemClock
from panal.node.desk import Desk
from tests.support.chaos.wires import Wire, Wires
from tests.support.installation import Installation, processes_naming
from tests.support.members import Member

KILLS_APART_S = 2.0
AFFLICTED_SHARE_MAX = 0.5
"""At most so many of the nodes have something happen to them at the same time."""

WEIGHTS = {"yield": 35, "cut": 18, "silence": 10, "freeze engine": 11, "freeze agent": 11, "kill": 15}


@dataclass
class Mishaps:
    """Afflicts members until told to stop. ``counts`` says how often what happened."""

    installation: Installation
    members: list[Member]
    wires: Wires
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    gateway_killed_s: list[float] = field(default_factory=list)
    bus_killed_s: list[float] = field(default_factory=list)
    _undo: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _last_kill_s: float = 0.0

    def run(self, seconds: float) -> None:
        """Something every half second or so, and once each third: gateway, bus, store."""
        begun_s = time.monotonic()
        great = [
            (seconds * 0.25, self.kill_gateway),
            (seconds * 0.5, self.kill_bus),
            (seconds * 0.75, self.lock_store),
        ]
        while (now_s := time.monotonic()) < begun_s + seconds:
            self._end_due(now_s)
            if great and now_s - begun_s >= great[0][0]:
                great.pop(0)[1]()
            elif len(self._undo) < AFFLICTED_SHARE_MAX * len(self.members):
                self._afflict(now_s)
            time.sleep(self.chance.uniform(0.2, 0.8))
        self.end_all()

    def end_all(self) -> None:
        """Everything that was done to somebody is undone."""
        for _due_s, _number, undo in self._undo:
            undo()
        self._undo.clear()

    def _end_due(self, now_s: float) -> None:
        for _due_s, _number, undo in [each for each in self._undo if each[0] <= now_s]:
            undo()
        self._undo = [each for each in self._undo if each[0] > now_s]

    def _afflict(self, now_s: float) -> None:
        well = set(range(len(self.members))) - {number for _due_s, number, _undo in self._undo}
        number = self.chance.choice(sorted(well))
        kind = self.chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))[0]
        if kind == "kill":
            if now_s - self._last_kill_s < KILLS_APART_S:
                return
            self._last_kill_s = now_s
        undo = getattr(self, "_" + kind.replace(" ", "_"))(number)
        if undo is None:
            return
        self.counts[kind] += 1
        self._undo.append((now_s + self.chance.uniform(1.0, 4.0), number, undo))

    # --- to a node --------------------------------------------------------------------------------

    def _yield(self, number: int) -> Callable[[], None]:
        """Its owner pauses it, and resumes later."""
        desk = Desk(self.members[number].agent_home, SystemClock())
        desk.pause()
        return lambda: _done(desk.resume())

    def _cut(self, number: int) -> Callable[[], None]:
        self.wires.set(number, Wire.CUT)
        return lambda: self.wires.set(number, Wire.WHOLE)

    def _silence(self, number: int) -> Callable[[], None]:
        self.wires.set(number, Wire.SILENT)
        return lambda: self.wires.set(number, Wire.WHOLE)

    def _freeze_engine(self, number: int) -> Callable[[], None] | None:
        engines = self.members[number].engines()
        return _frozen(engines[0]) if engines else None

    def _freeze_agent(self, number: int) -> Callable[[], None]:
        return _frozen(psutil.Process(self.members[number].program.process.pid))

    def _kill(self, number: int) -> Callable[[], None]:
        member = self.members[number]
        member.program.process.kill()
        member.program.process.wait()
        member.program.kill()  # nothing is left of it but its output
        return member.start

    # --- to the rest ------------------------------------------------------------------------------

    def kill_gateway(self) -> None:
        """It comes back by its supervisor."""
        self._kill_program("gateway", self.gateway_killed_s)

    def kill_bus(self) -> None:
        self._kill_program("nats-server", self.bus_killed_s)

    def lock_store(self, seconds: float = 3.0) -> None:
        """Nobody can write or read anew for a while."""
        self.counts["lock store"] += 1
        threading.Thread(target=_lock, args=(self.installation.home / "panal.db", seconds)).start()

    def _kill_program(self, name: str, killed_s: list[float]) -> None:
        for process in processes_naming(str(self.installation.home)):
            if any(name in part for part in process.cmdline()):
                self.counts[f"kill {name}"] += 1
                killed_s.append(time.monotonic())
                process.kill()
                return
        raise AssertionError(f"no {name} runs")


def _frozen(process: psutil.Process) -> Callable[[], None]:
    process.send_signal(signal.SIGSTOP)

    def thaw() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)

    return thaw


def _lock(file: Path, seconds: float) -> None:
    connection = sqlite3.connect(file, timeout=10.0, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(seconds)
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def _done(_value: bool) -> None:
    """The undoing's own answer does not matter."""
