"""What the engine holds of this machine's memory, and whether it is back.

A memory that cannot be read is not back.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

import psutil

SLACK_BYTES = 64 * 1024 * 1024
"""What a machine's other programs may have taken since the baseline."""


class GpuMemory(Protocol):
    """The accelerators' memory (NVML and the like)."""

    def used_bytes(self, pids: Sequence[int]) -> int | None:
        """Held by these processes, or by all where a driver cannot tell them apart; None: not readable."""
        ...


def is_back(now_bytes: int | None, baseline_bytes: int, slack_bytes: int = SLACK_BYTES) -> bool:
    """Whether the memory is back at what it was before the engine started."""
    return now_bytes is not None and now_bytes <= baseline_bytes + slack_bytes


class EngineMemory:
    """The memory of an engine's processes and of everything that they started, also what outlives them.

    A process that loses its parent leaves the tree as the system sees it; here it is remembered, with the
    time of its birth, so that a pid that was given out again does not count.
    """

    def __init__(self, gpu: GpuMemory | None = None) -> None:
        self._gpu = gpu
        self._known: dict[int, psutil.Process] = {}

    def look(self, pids: Collection[int]) -> None:
        """Remember these processes and their children. Walks the process table: not for every poll."""
        for pid in pids:
            if pid not in self._known:
                try:
                    self._known[pid] = psutil.Process(pid)
                except psutil.NoSuchProcess:
                    continue
        for process in list(self._known.values()):
            try:
                for child in process.children(recursive=True):
                    self._known.setdefault(child.pid, child)
            except psutil.Error:
                continue

    def alive(self) -> list[int]:
        """Remembered processes that still run; the ended ones are forgotten."""
        for pid, process in list(self._known.items()):
            if not _runs(process):
                del self._known[pid]
        return sorted(self._known)

    def pids(self) -> list[int]:
        """Remembered processes, alive or not. Cheap."""
        return list(self._known)

    def held_bytes(self) -> int | None:
        """Main memory and accelerator memory held now; None when a part of it cannot be read."""
        main, accelerator = self.main_bytes(), self.accelerator_bytes()
        return None if main is None or accelerator is None else main + accelerator

    def main_bytes(self) -> int | None:
        """Main memory held now; None when a part of it cannot be read."""
        self.alive()
        total = 0
        for process in self._known.values():
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            except psutil.Error:
                return None
        return total

    def accelerator_bytes(self) -> int | None:
        """Accelerator memory held now, 0 on machines without one; None when it cannot be read."""
        return 0 if self._gpu is None else self._gpu.used_bytes(self.alive())

    def end_survivors(self) -> list[int]:
        """Kill what the engine left running when it ended. Returns their pids."""
        ended = []
        for pid in self.alive():
            try:
                self._known[pid].kill()
                ended.append(pid)
            except psutil.Error:
                continue
        return ended


def _runs(process: psutil.Process) -> bool:
    """Whether it is there and holds anything: a zombie only waits to be collected."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
