"""Engines that an agent left behind: found again by a mark that only we know, or by pid and time of birth.

Before an engine starts, a record of it is written; at the next start whatever still runs of it is ended.
Its programs, and what they started, carry the mark in their environment. Where that cannot be read, pid
and time of birth together decide, so that a pid that was given out again is never taken for ours.
"""

import contextlib
import secrets
from pathlib import Path

import msgspec
import psutil

from panal.core.errors import SettingsError
from panal.core.private_files import write_private

MARK = "PANAL_ENGINE_MARK"
BIRTH_S_MAX = 0.5
"""Two times of birth that differ by less are the same, as the system's clock was corrected meanwhile."""
END_S_MAX = 3.0
FILE_BYTES_MAX = 64 * 1024


class Record(msgspec.Struct, kw_only=True):
    """The engine that was started last. ``pid`` 0: it was about to be.

    ``folder`` is where the record was written: in a copy of it the engine is somebody else's.
    """

    mark: str
    folder: str
    pid: int = 0
    born_utc_s: float = 0.0


class Leftovers:
    """The record beside an engine's log, one file an engine."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._folder = str(file.parent.absolute())
        self._mark = ""

    def begin(self) -> dict[str, str]:
        """Before a start: note a new mark. Returns what the engine's environment must hold."""
        self._mark = secrets.token_hex(16)
        self._write(Record(mark=self._mark, folder=self._folder))
        return {MARK: self._mark}

    def started(self, pid: int) -> None:
        """The engine runs."""
        try:
            born_utc_s = psutil.Process(pid).create_time()
        except psutil.Error:
            return
        self._write(Record(mark=self._mark, folder=self._folder, pid=pid, born_utc_s=born_utc_s))

    def forget(self) -> None:
        """The engine has ended in order."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def end_all(self) -> list[int]:
        """End what an earlier agent left running. Returns the pids; takes at most END_S_MAX."""
        record = self._read()
        if record is None or record.folder != self._folder:
            return []
        found = [each for each in psutil.process_iter() if _is_left(each, record)]
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        _gone, alive = psutil.wait_procs(found, timeout=END_S_MAX)
        if not alive:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)
        return sorted(process.pid for process in found)

    def _read(self) -> Record | None:
        try:
            with self._file.open("rb") as stream:
                return msgspec.json.decode(stream.read(FILE_BYTES_MAX), type=Record)
        except (OSError, msgspec.DecodeError, ValueError):
            return None

    def _write(self, record: Record) -> None:
        with contextlib.suppress(SettingsError):  # without the record an engine still ends with its agent
            write_private(self._file, msgspec.json.encode(record), durable=False)


def _is_left(process: psutil.Process, record: Record) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        try:
            return process.environ().get(MARK) == record.mark
        except (psutil.AccessDenied, OSError):
            same = process.pid == record.pid
            return same and abs(process.create_time() - record.born_utc_s) <= BIRTH_S_MAX
    except psutil.Error:
        return False


def end_leftovers(folder: Path) -> list[int]:
    """End what earlier agents left running, by all records in an engine's folder. Returns the pids."""
    ended: list[int] = []
    for file in sorted(folder.glob("*.running")):
        ended += Leftovers(file).end_all()
    return ended
