"""Stop strings, matched while text arrives and across the joint of two attempts. Pure."""

from dataclasses import dataclass
from typing import Any

STOPS_MAX = 16
"""More stop strings than this are left to the engine."""


def stop_list(value: Any) -> tuple[str, ...]:
    """A request's ``stop`` field as non-empty strings; anything odd is the engine's to refuse."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return ()
    return tuple(item for item in value if item)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``safe``: how many of the held characters may go out; ``hit``: a stop string follows them."""

    safe: int
    hit: bool = False


class StopMatcher:
    """Finds the first stop string; holds back what may still become one.

    ``sent`` is text that the client already has, of which only the tail matters: a stop string that
    begins in it and ends in new text counts, though what was sent cannot be taken back.
    """

    def __init__(self, stops: tuple[str, ...], sent: str = "") -> None:
        self._stops = stops
        self._reach = max((len(stop) for stop in stops), default=1) - 1
        self._tail = sent[-self._reach :] if self._reach else ""
        self._held = ""

    @property
    def held(self) -> str:
        """Text that was fed and not yet released."""
        return self._held

    def feed(self, text: str) -> Verdict:
        """Add text; say how much of the held text is safe now."""
        self._held += text
        tail_length = len(self._tail)
        whole = self._tail + self._held
        first: int | None = None
        for stop in self._stops:
            found = whole.find(stop, max(0, tail_length - len(stop) + 1))
            if found >= 0 and (first is None or found < first):
                first = found
        if first is not None:
            return Verdict(max(0, first - tail_length), hit=True)
        return Verdict(len(self._held) - min(self._open_end(whole), len(self._held)))

    def release(self, characters: int) -> None:
        """The first ``characters`` of the held text went out."""
        if self._reach:
            self._tail = (self._tail + self._held[:characters])[-self._reach :]
        self._held = self._held[characters:]

    def _open_end(self, whole: str) -> int:
        """Length of the longest end of ``whole`` that is the beginning of a stop string."""
        for length in range(min(self._reach, len(whole)), 0, -1):
            end = whole[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
