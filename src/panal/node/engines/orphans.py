"""An engine that outlived its agent is found by the next agent and ended.

Engines end with their agent by themselves (child.py); this is for those that could not, such as one that
hung on a system without a death signal. The record names process, birth and folder, so that neither a
process id that was given out again nor a copy of the folder makes anybody end a stranger.
"""

import contextlib
import logging
from pathlib import Path

import msgspec
import psutil

END_S_MAX = 5.0
BORN_S_APART_MAX = 1.0

_log = logging.getLogger("panal.node.engine")


class EngineRecord(msgspec.Struct, frozen=True):
    """``born_s`` is the process's start as the system tells it; ``folder`` the engine's, absolute."""

    process_id: int
    born_s: float
    folder: str


class Orphans:
    """The record of one engine's process in ``file``."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def remember(self, process_id: int) -> None:
        """This process was just started. A record that cannot be written costs no start."""
        with contextlib.suppress(psutil.NoSuchProcess):
            born_s = psutil.Process(process_id).create_time()
            record = EngineRecord(process_id, born_s, str(self._file.parent.absolute()))
            try:
                self._file.write_bytes(msgspec.json.encode(record))
            except OSError as error:
                _log.warning("the engine's process cannot be written down: %s", error.strerror)

    def forget(self) -> None:
        """It has ended in order."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def end(self) -> list[int]:
        """Kill what an earlier agent left running in this folder, with its children. Gives their ids."""
        orphan = self._left_over()
        if orphan is None:
            return []
        found = [orphan]
        with contextlib.suppress(psutil.Error):
            found += orphan.children(recursive=True)
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=END_S_MAX)
        _log.warning("an engine of an earlier agent was still running; it was ended")
        self.forget()
        return [process.pid for process in found]

    def _left_over(self) -> psutil.Process | None:
        try:
            record = msgspec.json.decode(self._file.read_bytes(), type=EngineRecord)
            process = psutil.Process(record.process_id)
            same = abs(process.create_time() - record.born_s) < BORN_S_APART_MAX
            runs = process.status() != psutil.STATUS_ZOMBIE
        except (OSError, msgspec.DecodeError, psutil.Error):
            return None
        ours = record.folder == str(self._file.parent.absolute())
        return process if same and runs and ours else None
