"""What this gateway's own sight of the fleet is worth now: is the silence theirs, or ours?

Nodes are judged by their heartbeats. While the bus is away, or this process was held up, no heartbeat
arrives, or old ones arrive late: neither says anything of a node. Then nothing new is given out, running
answers are excused for a while, and afterwards every node has to be heard once more before it counts.
"""

from collections.abc import Callable
from enum import StrEnum

from panal.core.clock import Clock

AWAY_S_MAX = 10.0
"""For so long answers wait for the bus to come back."""

SETTLE_S = 4.0
"""Nodes come back with back-off: for so long after an outage a silence is no fault of theirs."""

OVERSLEPT_S = 1.5
"""A watch that comes later than this was held up, and with it everything that had arrived."""


class Sight(StrEnum):
    """``doubtful``: what arrives now may be old, so that nobody is known to be there."""

    CLEAR = "clear"
    DOUBTFUL = "doubtful"
    AWAY = "away"


class BusSight:
    """Used from the event loop only. ``on_doubt`` is called when somebody must see to ``trust`` again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.on_doubt: Callable[[], None] = _nobody_sees_to_it
        self._away_s: float | None = None
        self._doubtful = False
        self._settled_s = float("-inf")
        self._watched_s: float | None = None

    def connection(self, connected: bool) -> None:
        """The bus is there, or it is away."""
        now_s = self._clock.monotonic_seconds()
        if not connected:
            self._away_s = now_s if self._away_s is None else self._away_s
            return
        self._away_s = None
        self._doubt(now_s)

    def watched(self) -> None:
        """The watch came round; it notices by itself if it came too late."""
        now_s = self._clock.monotonic_seconds()
        if self._overslept(now_s):
            self._doubt(now_s)
        self._watched_s = now_s

    def trust(self) -> None:
        """Whatever was old has been dealt with: from now on, what is heard counts."""
        self._doubtful = False
        self._settled_s = self._clock.monotonic_seconds() + SETTLE_S

    @property
    def now(self) -> Sight:
        if self._away_s is not None:
            return Sight.AWAY
        if self._doubtful or self._overslept(self._clock.monotonic_seconds()):
            return Sight.DOUBTFUL
        return Sight.CLEAR

    @property
    def settling(self) -> bool:
        """Whether nodes may still be on their way back to us."""
        return self.now is not Sight.CLEAR or self._clock.monotonic_seconds() < self._settled_s

    @property
    def excuses(self) -> bool:
        """Whether a node's silence may be our own doing."""
        if self._away_s is not None:
            return self._clock.monotonic_seconds() - self._away_s <= AWAY_S_MAX
        return self.settling

    def _overslept(self, now_s: float) -> bool:
        return self._watched_s is not None and now_s - self._watched_s > OVERSLEPT_S

    def _doubt(self, now_s: float) -> None:
        self._doubtful = True
        self._settled_s = now_s + SETTLE_S
        self.on_doubt()


def _nobody_sees_to_it() -> None:
    """Until somebody does."""
