"""What a process has used so far: CPU, memory, page faults. From /proc, so on Linux only."""

import os
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, slots=True)
class Used:
    """``cpu_s``: user and system time of all living threads. ``faults``: pages mapped without a disk."""

    cpu_s: float
    resident_bytes: int
    faults: int


def used(pid: int) -> Used:
    """What the process has used since its start. Raises OSError when it is gone."""
    folder = Path(f"/proc/{pid}")
    fields = (folder / "stat").read_text().rpartition(") ")[2].split()
    resident_pages = int((folder / "statm").read_text().split()[1])
    return Used(_cpu_s(folder, fields), resident_pages * PAGE_BYTES, int(fields[7]))


def _cpu_s(folder: Path, stat_fields: list[str]) -> float:
    """By the scheduler's own count in nanoseconds where it keeps one, else in ticks of about 10 ms."""
    total_ns = 0
    for thread in (folder / "task").iterdir():
        try:
            total_ns += int((thread / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended in between, or the kernel keeps no such count
    return total_ns / 1e9 if total_ns else (int(stat_fields[11]) + int(stat_fields[12])) / TICKS_PER_S


def pin(pid: int, core: int) -> None:
    """Keep the process and all its threads on one core. Raises OSError where that is not allowed."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), {core})
        except ProcessLookupError:
            continue
