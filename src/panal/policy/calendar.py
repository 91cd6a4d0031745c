"""When this machine's owner tends to come: free and departing hours of the week, learnt here. Pure.

For each of the 168 hours of a local week: hours seen free, hours seen taken, and departures (from free to
taken), each fading by half in HALF_LIFE_S. The hazard of an hour is its departures per free hour, with one
departure in PRIOR_FREE_H free hours believed beforehand, so that a new desk is neither safe nor hopeless
(scheduling by churn: Beta prior, decay of four weeks).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

WEEK_H = 168
HOUR_S = 3600.0
HALF_LIFE_S = 28 * 86400.0
PRIOR_FREE_H = 2.5
STEP_S_MAX = 60.0
"""A longer gap between two looks says nothing of what was in between."""

TELL_STEP_PER_H = 0.1
"""What leaves the machine is rounded to this, so that it tells a habit and no event."""

TELL_PER_H_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Calendar:
    """Three numbers for each hour of the week, from Monday 00:00; ``told_s``: UTC seconds, the last look."""

    free_h: tuple[float, ...] = (0.0,) * WEEK_H
    taken_h: tuple[float, ...] = (0.0,) * WEEK_H
    departures: tuple[float, ...] = (0.0,) * WEEK_H
    told_s: float = 0.0
    was_free: bool = False


def hour_of_week(utc_s: float, utc_offset_s: float) -> int:
    """The hour since Monday 00:00 local time; the epoch was a Thursday."""
    return int((utc_s + utc_offset_s) // HOUR_S + 72) % WEEK_H


def learnt(calendar: Calendar, utc_s: float, utc_offset_s: float, *, free: bool) -> Calendar:
    """After a look: the machine is free for work now, or is not."""
    gap_s = utc_s - calendar.told_s
    known = 0 < gap_s <= STEP_S_MAX
    hour = hour_of_week(utc_s, utc_offset_s)
    keep = 0.5 ** (gap_s / HALF_LIFE_S) if gap_s > 0 else 1.0
    span_h = gap_s / HOUR_S if known else 0.0
    was_free = calendar.was_free
    return Calendar(
        free_h=_faded(calendar.free_h, keep, hour, span_h if was_free else 0.0),
        taken_h=_faded(calendar.taken_h, keep, hour, 0.0 if was_free else span_h),
        departures=_faded(calendar.departures, keep, hour, 1.0 if known and was_free and not free else 0.0),
        told_s=utc_s,
        was_free=free,
    )


def hazard_per_h(calendar: Calendar, hour: int) -> float:
    """Departures per free hour in this hour of the week, with the prior."""
    return (calendar.departures[hour] + 1.0) / (calendar.free_h[hour] + PRIOR_FREE_H)


def free_share(calendar: Calendar, hour: int) -> float:
    """Of this hour of the week, how much the machine is free; one half where nothing is known."""
    free_h, taken_h = calendar.free_h[hour], calendar.taken_h[hour]
    return (free_h + 1.0) / (free_h + taken_h + 2.0)


def hazards_to_tell(calendar: Calendar, utc_s: float, utc_offset_s: float, hours: int = 2) -> list[float]:
    """Of this hour and the next ones, rounded and bounded: all that leaves the machine."""
    now = hour_of_week(utc_s, utc_offset_s)
    told = []
    for hour in range(now, now + hours):
        exact = min(hazard_per_h(calendar, hour % WEEK_H), TELL_PER_H_MAX)
        told.append(round(max(1, round(exact / TELL_STEP_PER_H)) * TELL_STEP_PER_H, 1))
    return told


def calendar_from(rows: Sequence[Sequence[float]], told_s: float) -> Calendar | None:
    """A kept calendar: 168 rows of three numbers. None where that is not what was kept."""
    if len(rows) != WEEK_H or any(len(row) != 3 or min(row) < 0 for row in rows):
        return None
    free_h, taken_h, departures = zip(*rows, strict=True)
    return replace(Calendar(), free_h=free_h, taken_h=taken_h, departures=departures, told_s=told_s)


def rows_of(calendar: Calendar) -> list[tuple[float, float, float]]:
    """What ``calendar_from`` reads, in thousandths."""
    kept = zip(calendar.free_h, calendar.taken_h, calendar.departures, strict=True)
    return [(round(free, 3), round(taken, 3), round(gone, 3)) for free, taken, gone in kept]


def _faded(values: tuple[float, ...], keep: float, hour: int, more: float) -> tuple[float, ...]:
    return tuple(value * keep + (more if at == hour else 0.0) for at, value in enumerate(values))
