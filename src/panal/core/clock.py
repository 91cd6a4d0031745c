"""Time as an argument: programs hand in a SystemClock, tests a clock they move by hand."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two kinds of time. Both are plain floats in seconds."""

    def utc_seconds(self) -> float:
        """Seconds since 1970-01-01 00:00 UTC; may jump when the machine's clock is set."""
        ...

    def monotonic_seconds(self) -> float:
        """Seconds since an arbitrary start; never goes back. Use it for every duration and deadline."""
        ...


class SystemClock:
    """The machine's clock."""

    def utc_seconds(self) -> float:
        return time.time()

    def monotonic_seconds(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, utc_seconds: float = 1_800_000_000.0, monotonic_seconds: float = 1_000.0) -> None:
        self._utc_seconds = utc_seconds
        self._monotonic_seconds = monotonic_seconds

    def utc_seconds(self) -> float:
        return self._utc_seconds

    def monotonic_seconds(self) -> float:
        return self._monotonic_seconds

    def advance(self, seconds: float) -> None:
        """Move both kinds of time forward by ``seconds``."""
        self._utc_seconds += seconds
        self._monotonic_seconds += seconds
