"""Who leads, decided without any wall clock: a lease that others see unrenewed for long enough is free. Pure.

The row in the store holds the holder, the term, and how often it was renewed in that term (``beat``).

- The holder believes that it leads until ``LEASE_S - MARGIN_S`` after it *sent* its last renewal that
  succeeded, by its own monotonic clock.
- Another may take the lease once it has *known* one and the same beat for ``LEASE_S``, by its own
  monotonic clock; taking compares term and beat and raises the term, so that of several one succeeds,
  and none where the holder renewed meanwhile.

A beat is known only after it was written, and it is written only after it was sent; so the belief of the
old ends before the lease can be taken, however long any of them is held up, if no clock runs faster than
another by more than ``MARGIN_S`` in ``LEASE_S``. Where a clock stands still for a while (a machine that was
suspended) the term decides: the store and the nodes refuse what carries an older one.
"""

from dataclasses import dataclass
from enum import Enum

LEASE_S = 4.0
MARGIN_S = 0.5
RENEW_EACH_S = 1.5
LOOK_EACH_S = 0.5
NOBODY = ""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """The lease as the store has it. ``holder`` NOBODY: it was given back, or never taken."""

    holder: str
    term: int
    beat: int


class Move(Enum):
    """What to do now."""

    WAIT = "wait"
    RENEW = "renew"
    TAKE = "take"


class Tenure:
    """One candidate's view of the lease. All times are seconds of its own monotonic clock."""

    def __init__(self, holder: str) -> None:
        self._holder = holder
        self._row: LeaseRow | None = None
        self._known_since_s = 0.0
        self._term: int | None = None
        self._ends_s = float("-inf")

    def term(self, now_s: float) -> int | None:
        """The term in which this candidate leads; None when it does not, or is no longer sure."""
        return self._term if now_s < self._ends_s else None

    def seen(self, row: LeaseRow, now_s: float) -> None:
        """The row as it was read. ``now_s``: taken after the answer had come."""
        if row != self._row:
            self._row, self._known_since_s = row, now_s
        if self._term is not None and (row.holder, row.term) != (self._holder, self._term):
            self.lost()

    def next_move(self, now_s: float) -> tuple[Move, LeaseRow]:
        """What to try, and against which row. A row must have been seen before."""
        row = self._row
        assert row is not None
        if row.holder == self._holder:  # also where the answer to its taking was lost
            return Move.RENEW, row
        if row.holder == NOBODY or now_s - self._known_since_s >= LEASE_S:
            return Move.TAKE, row
        return Move.WAIT, row

    def held(self, row: LeaseRow, asked_s: float, now_s: float) -> None:
        """Taking or renewing succeeded and left this row. ``asked_s``: taken before it was sent."""
        self._row, self._known_since_s = row, now_s
        self._term = row.term
        self._ends_s = asked_s + LEASE_S - MARGIN_S

    def lost(self) -> None:
        """Another holds it, or it was given back."""
        self._term = None
        self._ends_s = float("-inf")


def taken(seen: LeaseRow, holder: str, utc_s: float) -> LeaseRow:
    """The row after ``holder`` took it.

    Terms rise with the time of day too, so that they also do over the restore of an older database.
    """
    return LeaseRow(holder, max(seen.term + 1, int(utc_s)), 0)


def renewed(seen: LeaseRow) -> LeaseRow:
    return LeaseRow(seen.holder, seen.term, seen.beat + 1)
