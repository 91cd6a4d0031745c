"""How the gateway processes of one host know each other's numbers: one small file each, written anew each
second, in a folder that the supervisor empties at its start.

A file belongs to a place (process number 1, 2, ...), not to a process. Who takes a place over goes on from
what its predecessor had counted, so that no counter goes back and there are never more files than places.
A process shows only what stands in the files, its own after writing it: whatever a scrape has seen, every
later scrape of any process sees at least.
"""

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from prometheus_client import generate_latest

from panal.core.errors import SettingsError
from panal.core.private_files import write_private
from panal.telemetry.logs import fields
from panal.telemetry.sums import Collected, Family, Part, added_up, counted

PUBLISH_EACH_S = 1.0
SNAPSHOT_BYTES_MAX = 64 * 1024 * 1024
PLACES_MAX = 64

log = logging.getLogger("panal.gateway")


class Snapshot(msgspec.Struct, kw_only=True, frozen=True):
    """What one process counted, with all that its predecessors in its place had counted.

    ``mark`` tells the process from a later one with the same ``pid``.
    """

    number: int
    gateway: str
    pid: int
    mark: str
    began_utc_s: float
    leads: bool = False
    families: list[Family] = []


class ProcessSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway process of this host. ``leads``: it is the installation's controller."""

    number: int
    gateway: str
    pid: int
    began_utc_s: float
    lives: bool
    leads: bool


class Shown(Protocol):
    """What the routes ask for."""

    async def text(self) -> bytes: ...

    async def processes(self) -> Sequence[ProcessSeen]: ...


class MetricsExchange:
    """One process's side. ``families`` and ``leads`` are asked at each writing. The constructor touches
    nothing.
    """

    def __init__(
        self,
        families: Callable[[], list[Family]],
        folder: Path,
        number: int,
        gateway: str,
        began_utc_s: float,
        leads: Callable[[], bool] = lambda: False,
    ) -> None:
        self._families = families
        self._folder = folder
        self._number = number
        self._gateway = gateway
        self._began_utc_s = began_utc_s
        self._leads = leads
        self._mark = mark_of(os.getpid())
        self._before: list[Family] = []
        self._last: tuple[list[Family], bool] | None = None
        self._written: Snapshot | None = None
        self._one_at_a_time = asyncio.Lock()
        self._told = False

    def open(self) -> None:
        """Go on from what earlier processes in this place had counted."""
        found = _read(self._path())
        if found is not None:
            self._before = counted(found.families)

    async def run(self) -> None:
        """Write each second what has changed, until cancelled."""
        while True:
            await self.publish()
            await asyncio.sleep(PUBLISH_EACH_S)

    async def publish(self) -> Snapshot:
        """Write this process's numbers as they are now. A disk that refuses them is told in the log."""
        async with self._one_at_a_time:
            now = (self._families(), self._leads())
            if self._written is not None and now == self._last:
                return self._written
            snapshot = await asyncio.to_thread(self._snapshot, *now)
            try:
                await asyncio.to_thread(_write, self._path(), snapshot)
                self._last, self._written, self._told = now, snapshot, False
            except SettingsError as error:
                if not self._told:
                    log.error("metrics: %s", error.message, extra=fields(action="metrics_not_kept"))
                self._told = True
            return snapshot

    async def text(self) -> bytes:
        """The sums over this host's processes, in Prometheus' text format."""
        own = await self.publish()
        return await asyncio.to_thread(_shown, self._folder, own)

    async def processes(self) -> Sequence[ProcessSeen]:
        """The processes of this host by their number, also those that have ended and were not replaced."""
        own = await self.publish()
        return await asyncio.to_thread(lambda: [_seen(each) for each in _all(self._folder, own)])

    def _snapshot(self, own: list[Family], leads: bool) -> Snapshot:
        whole = added_up([Part(own, lives=True), Part(self._before, lives=False)]) if self._before else own
        return Snapshot(
            number=self._number,
            gateway=self._gateway,
            pid=os.getpid(),
            mark=self._mark,
            began_utc_s=self._began_utc_s,
            leads=leads,
            families=whole,
        )

    def _path(self) -> Path:
        return _path(self._folder, self._number)


def snapshots_in(folder: Path) -> list[ProcessSeen]:
    """The processes that have written there, by their number: for who looks from outside."""
    return [_seen(each) for each in _all(folder, None)]


def forget_counts(folder: Path) -> None:
    """At the start of all processes of a host: counting begins anew, and no stale file stays."""
    for path in folder.glob("*.json") if folder.is_dir() else ():
        path.unlink(missing_ok=True)


def mark_of(pid: int) -> str:
    """When a process began, by the kernel's own count; empty when there is none, or it is no longer one.

    Empty for every process where the system does not tell.
    """
    if sys.platform != "linux":
        return ""
    try:
        rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if rest[0] in (b"Z", b"X") else rest[19].decode()


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number}.json"


def _write(path: Path, snapshot: Snapshot) -> None:
    write_private(path, msgspec.json.encode(snapshot), durable=False)


def _read(path: Path) -> Snapshot | None:
    with contextlib.suppress(OSError, msgspec.DecodeError, ValueError):
        if path.stat().st_size <= SNAPSHOT_BYTES_MAX:
            return msgspec.json.decode(path.read_bytes(), type=Snapshot)
    return None


def _all(folder: Path, own: Snapshot | None) -> list[Snapshot]:
    found = [
        own if own is not None and own.number == number else _read(_path(folder, number))
        for number in range(1, PLACES_MAX + 1)
    ]
    return [each for each in found if each is not None]


def _seen(snapshot: Snapshot) -> ProcessSeen:
    lives = _lives(snapshot)
    return ProcessSeen(
        number=snapshot.number,
        gateway=snapshot.gateway,
        pid=snapshot.pid,
        began_utc_s=snapshot.began_utc_s,
        lives=lives,
        leads=lives and snapshot.leads,
    )


def _lives(snapshot: Snapshot) -> bool:
    return snapshot.pid == os.getpid() or (snapshot.mark != "" and mark_of(snapshot.pid) == snapshot.mark)


def _shown(folder: Path, own: Snapshot) -> bytes:
    parts = [Part(each.families, _lives(each)) for each in _all(folder, own)]
    return generate_latest(Collected(added_up(parts)))
