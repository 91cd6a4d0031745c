"""Spools whose process is gone and did not come back: another process of the host drains them.

A process that is started again drains its own, so a spool counts as left only when nobody has held it for
a while. Its lock keeps two from draining it; that a record is never written twice, the store sees to.
"""

import asyncio
import logging
from pathlib import Path

from panal.core.clock import Clock
from panal.core.errors import SettingsError, StoreError
from panal.store.folder_lock import FolderLock
from panal.store.usage_spool import UsageSink, UsageSpool

LOOK_EACH_S = 5.0
LEFT_AFTER_S = 10.0
SEGMENTS_AT_ONCE = 1
"""So that a process that comes back waits for its folder for a moment only."""

log = logging.getLogger("panal.store")


class LeftSpools:
    """``root`` and its numbered folders are spools; ``own`` is this process's."""

    def __init__(self, root: Path, own: Path, clock: Clock, *, left_after_s: float = LEFT_AFTER_S) -> None:
        self._root = root
        self._own = own
        self._clock = clock
        self._left_after_s = left_after_s
        self._free_since_s: dict[Path, float] = {}

    async def run(self, sink: UsageSink) -> None:
        """Look every few seconds until cancelled. While the store is away nothing is touched."""
        while True:
            await asyncio.sleep(LOOK_EACH_S)
            try:
                await self.drain(sink)
            except StoreError as error:
                log.info("left usage waits: %s", error.message, extra={"action": "left_usage_waits"})

    async def drain(self, sink: UsageSink) -> int:
        """What was left long enough goes to the store; how many settlements did. Raises StoreError."""
        now_s = self._clock.monotonic_seconds()
        free = {folder for folder in await asyncio.to_thread(self._waiting) if _is_free(folder)}
        self._free_since_s = {folder: self._free_since_s.get(folder, now_s) for folder in free}
        drained = 0
        for folder, since_s in self._free_since_s.items():
            if now_s - since_s >= self._left_after_s:
                drained += await self._drain(folder, sink)
        return drained

    async def _drain(self, folder: Path, sink: UsageSink) -> int:
        spool = UsageSpool(folder)
        try:
            spool.open()
        except SettingsError:  # its process is back, or another one was quicker
            return 0
        try:
            drained = await spool.drain(sink, segments_max=SEGMENTS_AT_ONCE)
        finally:
            spool.close()
        if drained:
            log.warning(
                "%d usage records of an ended process were written", drained, extra={"action": "left_usage"}
            )
        return drained

    def _waiting(self) -> list[Path]:
        """Folders that hold something."""
        numbered = sorted(self._root.glob("[0-9]*/")) if self._root.is_dir() else []
        return [
            folder
            for folder in (self._root, *numbered)
            if folder != self._own and next(folder.glob("*.jsonl"), None) is not None
        ]


def _is_free(folder: Path) -> bool:
    lock = FolderLock(folder)
    try:
        lock.take()
    except SettingsError:
        return False
    lock.release()
    return True
