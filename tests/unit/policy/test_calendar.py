"""The calendar of a desk: what it learns, what it forgets, what it tells."""

import csv
import gzip
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.policy.calendar import (
    HALF_LIFE_S,
    HOUR_S,
    TELL_PER_H_MAX,
    WEEK_H,
    Calendar,
    calendar_from,
    free_share,
    hazard_per_h,
    hazards_to_tell,
    hour_of_week,
    learnt,
    rows_of,
)

MONDAY = 1_795_996_800.0
"""2026-11-30 00:00 UTC."""


def lived(weeks: int, busy_hours: range, calendar: Calendar | None = None) -> Calendar:
    """A desk that its owner uses in the same hours of each working day, with a break each half hour."""
    calendar = calendar or Calendar()
    begin_s = calendar.told_s or MONDAY
    for minute in range(weeks * WEEK_H * 60):
        utc_s = begin_s + minute * 60.0
        hour = hour_of_week(utc_s, 0.0)
        at_work = hour // 24 < 5 and hour % 24 in busy_hours and minute % 30 < 20
        calendar = learnt(calendar, utc_s, 0.0, free=not at_work)
    return calendar


@pytest.fixture(scope="module")
def office() -> Calendar:
    return lived(2, range(9, 18))


def test_hours_are_counted_from_monday_in_local_time() -> None:
    assert hour_of_week(MONDAY, 0.0) == 0
    assert hour_of_week(MONDAY, 3600.0) == 1
    assert hour_of_week(MONDAY, -3600.0) == WEEK_H - 1
    assert hour_of_week(MONDAY + 7 * 86400.0, 0.0) == 0


def test_office_hours_are_dangerous_and_nights_are_not(office: Calendar) -> None:
    day, night = hazard_per_h(office, 10), hazard_per_h(office, 3)
    assert day > 1.0
    assert night < 0.5
    assert free_share(office, 3) > 0.7
    assert free_share(office, 10) < 0.5


def test_an_unknown_desk_has_the_prior() -> None:
    assert {hazard_per_h(Calendar(), hour) for hour in range(WEEK_H)} == {0.4}
    assert hazards_to_tell(Calendar(), MONDAY, 0.0) == [0.4, 0.4]


def test_old_habits_fade(office: Calendar) -> None:
    before = hazard_per_h(office, 10)
    later = lived(6, range(0), replace(office, told_s=office.told_s + 60.0))
    assert hazard_per_h(later, 10) < before / 3
    gap = learnt(office, office.told_s + HALF_LIFE_S, 0.0, free=True)
    assert gap.free_h[3] == pytest.approx(office.free_h[3] / 2)


def test_a_gap_and_a_clock_that_goes_back_teach_nothing_new(office: Calendar) -> None:
    gap = learnt(office, office.told_s + 8 * HOUR_S, 0.0, free=not office.was_free)
    assert sum(gap.departures) <= sum(office.departures)
    assert sum(gap.free_h) + sum(gap.taken_h) <= sum(office.free_h) + sum(office.taken_h)
    back = learnt(office, office.told_s - 100.0, 0.0, free=False)
    assert back.departures == office.departures


@given(st.lists(st.tuples(st.floats(-5e4, 5e4), st.booleans()), max_size=60), st.floats(-14, 14))
def test_whatever_happens_what_is_told_is_coarse_bounded_and_positive(
    looks: list[tuple[float, bool]], offset_h: float
) -> None:
    calendar, utc_s = Calendar(), MONDAY
    for gap_s, free in looks:
        utc_s += gap_s
        calendar = learnt(calendar, utc_s, offset_h * HOUR_S, free=free)
        assert min(calendar.free_h + calendar.taken_h + calendar.departures) >= 0.0
    told = hazards_to_tell(calendar, utc_s, offset_h * HOUR_S)
    assert len(told) == 2
    for each in told:
        assert 0.1 <= each <= TELL_PER_H_MAX
        assert round(each * 10) / 10 == each


def test_what_was_kept_is_read_again_and_what_is_broken_is_not(office: Calendar) -> None:
    rows = rows_of(office)
    again = calendar_from(rows, office.told_s)
    assert again is not None
    assert again.free_h == pytest.approx(office.free_h, abs=0.001)
    assert calendar_from(rows[:-1], 0.0) is None
    assert calendar_from([(-1.0, 0.0, 0.0), *rows[1:]], 0.0) is None
    assert calendar_from([(1.0, 2.0), *rows[1:]], 0.0) is None


def test_learnt_hazards_foresee_the_next_week_of_the_synthetic_desks() -> None:
    """SYNTHETIC data. A week teaches, the next is asked: hours called dangerous see more departures."""
    folder = os.environ.get("DESK_TRACES", "")
    file = Path(folder) / "desk_churn_synthetic.csv.gz"
    if not folder or not file.is_file():
        pytest.skip("the desk traces are not here: DESK_TRACES names their folder")
    with gzip.open(file, "rt") as stream:
        rows = [row for row in csv.DictReader(stream) if int(row["desk"]) < 8]
    desks: dict[str, list[tuple[float, float, bool]]] = {}
    for row in rows:
        span = (float(row["start_s"]), float(row["end_s"]), row["state"] == "free")
        desks.setdefault(row["desk"], []).append(span)
    seen = {True: [0.0, 0.0], False: [0.0, 0.0]}
    for spans in desks.values():
        calendar, asked = Calendar(), []
        for start_s, end_s, free in spans:
            for step in range(int((end_s - start_s) // 60)):
                now_s = start_s + step * 60.0
                if now_s < 7 * 86400.0:
                    calendar = learnt(calendar, MONDAY + now_s, 0.0, free=free)
                elif free:
                    asked.append((now_s, step == int((end_s - start_s) // 60) - 1))
        for now_s, last in asked:
            risky = hazard_per_h(calendar, hour_of_week(MONDAY + now_s, 0.0)) > 0.4
            seen[risky][0] += last
            seen[risky][1] += 1.0
    rates = {risky: gone / max(1.0, minutes) for risky, (gone, minutes) in seen.items()}
    assert rates[True] > 1.5 * rates[False], rates
