"""When a start has taken too long: not by the clock alone, since large models load slowly. Pure.

The limit counts from the last progress: a rising share that the engine tells, or memory that it takes.
"""

PROGRESS_BYTES = 1024 * 1024
"""Memory that grew by so much is progress; a program that merely breathes is not."""

TIMES_MAX = 10.0
"""In all a start takes so many times its limit at most, whatever it says of itself."""


class Load:
    """One start, begun at ``now_s``."""

    def __init__(self, limit_s: float, now_s: float) -> None:
        self._limit_s = limit_s
        self._begun_s = now_s
        self._moved_s = now_s
        self._share = 0.0
        self._memory_bytes = 0

    def told(self, share: float, now_s: float) -> None:
        """The engine says how much is loaded, from 0 to 1."""
        if share > self._share:
            self._share = share
            self._moved_s = now_s

    def holds(self, memory_bytes: int, now_s: float) -> None:
        """The engine's memory, as it was looked at."""
        if memory_bytes >= self._memory_bytes + PROGRESS_BYTES:
            self._memory_bytes = memory_bytes
            self._moved_s = now_s

    def over(self, now_s: float) -> bool:
        """Whether it has stood still for too long, or taken too long in all."""
        return now_s - self._moved_s > self._limit_s or now_s - self._begun_s > TIMES_MAX * self._limit_s
