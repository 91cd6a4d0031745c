"""Refusals worth remembering, counted so that nobody can fill a store by being refused.

A refusal is told soon after it happened. Equal ones of the same minute are counted and told once more, with
their number, when the minute is over. How many different ones a minute and a day may have is bounded, for
known callers and for strangers apart; what is beyond is counted without its address and target.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from panal.core.clock import Clock
from panal.core.principals import Principal
from panal.identity.attempt_limit import network_of

MINUTE_S = 60.0
DAY_MINUTES = 24 * 60
DIFFERENT_A_MINUTE_MAX = 30
DIFFERENT_A_DAY_MAX = 5_000
MESSAGE_CHARACTERS_MAX = 200
MANY = "many"
"""In place of an address: those that were too many to be told apart."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """``action`` is what was tried, ``reason`` the error's stable code, ``peer`` the caller's address.

    ``target`` is an id or a route, never anything the caller made up; ``actor`` None: a stranger.
    """

    action: str
    reason: str
    peer: str
    target: str = ""
    actor: Principal | None = None
    message: str = ""


@dataclass(slots=True)
class CountedRefusal:
    """``count`` equal refusals, of which this is the first; UTC seconds."""

    refusal: Refusal
    first_utc_s: float
    last_utc_s: float
    count: int


@dataclass(slots=True)
class _Kind:
    """What is known of one kind of caller this minute and this day."""

    minute: dict[tuple[str, ...], CountedRefusal] = field(default_factory=dict)
    beyond: dict[tuple[str, ...], CountedRefusal] = field(default_factory=dict)
    told: Counter[tuple[str, ...]] = field(default_factory=Counter)
    different_today: int = 0


class RefusalCounts:
    """In memory, of one process. ``note`` neither waits nor raises."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kinds = {True: _Kind(), False: _Kind()}
        self._minute = 0
        self._closed: list[CountedRefusal] = []

    def note(self, refusal: Refusal) -> None:
        """Count one refusal."""
        self._turn_minute()
        refusal = replace(
            refusal, peer=network_of(refusal.peer), message=refusal.message[:MESSAGE_CHARACTERS_MAX]
        )
        kind = self._kinds[refusal.actor is not None]
        place, rows = _place(refusal), kind.minute
        if place not in rows:
            if len(rows) >= DIFFERENT_A_MINUTE_MAX or kind.different_today >= DIFFERENT_A_DAY_MAX:
                refusal = replace(refusal, peer=MANY, target="", actor=None, message="")
                place, rows = _place(refusal), kind.beyond
            else:
                kind.different_today += 1
        now_utc_s = self._clock.utc_seconds()
        if place in rows:
            rows[place].count += 1
            rows[place].last_utc_s = now_utc_s
        else:
            rows[place] = CountedRefusal(refusal, now_utc_s, now_utc_s, 1)

    def due(self) -> Sequence[CountedRefusal]:
        """What is to be told now: what is new, and the repeats of minutes that are over."""
        self._turn_minute()
        found, self._closed = self._closed, []
        for kind in self._kinds.values():
            for rows in (kind.minute, kind.beyond):
                found += [_untold(row, kind, place) for place, row in rows.items() if not kind.told[place]]
        return found

    def close(self) -> Sequence[CountedRefusal]:
        """Everything that is not told yet: the program ends."""
        found = [*self.due()]
        self._close_minute()
        found += self._closed
        self._closed = []
        return found

    def _turn_minute(self) -> None:
        minute = int(self._clock.monotonic_seconds() // MINUTE_S)
        if minute == self._minute:
            return
        self._close_minute()
        if minute // DAY_MINUTES != self._minute // DAY_MINUTES:
            for kind in self._kinds.values():
                kind.different_today = 0
        self._minute = minute

    def _close_minute(self) -> None:
        for kind in self._kinds.values():
            for rows in (kind.minute, kind.beyond):
                for place, row in rows.items():
                    if row.count > kind.told[place]:
                        self._closed.append(_untold(row, kind, place))
                rows.clear()
            kind.told.clear()


def _place(refusal: Refusal) -> tuple[str, ...]:
    key = refusal.actor.key_id if refusal.actor is not None else ""
    who = refusal.actor.principal_id if refusal.actor is not None else ""
    return refusal.action, refusal.reason, refusal.target, who, key, refusal.peer


def _untold(row: CountedRefusal, kind: _Kind, place: tuple[str, ...]) -> CountedRefusal:
    """The row's refusals that were not told yet, marked as told."""
    fresh = replace(row, count=row.count - kind.told[place])
    kind.told[place] = row.count
    return fresh
