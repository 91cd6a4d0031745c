"""When a node may work, as its owner or its operators wrote it. Pure.

mo-fr 18:00-08:00, sa-su 00:00-24:00      local time; a range that ends before it begins ends the next day
"""

import re

_DAYS = ("mo", "tu", "we", "th", "fr", "sa", "su")
_PART = re.compile(r"(?:([a-z]{2})(?:-([a-z]{2}))?\s+)?(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")
DAY_MIN = 24 * 60
WEEK_MIN = 7 * DAY_MIN
PARTS_MAX = 50


class Hours:
    """The minutes of a week in which work is allowed; ``text`` empty: all of them."""

    def __init__(self, text: str) -> None:
        """Raises ValueError with a sentence for a person."""
        self.text = text.strip().lower()
        parts = [part.strip() for part in self.text.split(",") if part.strip()]
        if len(parts) > PARTS_MAX:
            raise ValueError(f"at most {PARTS_MAX} parts")
        self._ranges = [minutes for part in parts for minutes in _minutes(part)]

    def allow(self, minute_of_week: int) -> bool:
        """``minute_of_week``: from Monday 00:00 local time."""
        if not self._ranges:
            return True
        now = minute_of_week % WEEK_MIN
        return any(begin <= now < end or begin <= now + WEEK_MIN < end for begin, end in self._ranges)


def hours_fault(text: str) -> str | None:
    """What is wrong with ``text``, None when nothing is."""
    try:
        Hours(text)
    except ValueError as error:
        return f"is not a list of hours ({error})"
    return None


def _minutes(part: str) -> list[tuple[int, int]]:
    match = _PART.fullmatch(part)
    if match is None:
        raise ValueError(f"'{part}' is not like 'mo-fr 18:00-08:00'")
    first, last, *clock = match.groups()
    for day in (first, last):
        if day is not None and day not in _DAYS:
            raise ValueError(f"'{day}' is no day: use {', '.join(_DAYS)}")
    begin_h, begin_min, end_h, end_min = (int(each) for each in clock)
    begin, end = begin_h * 60 + begin_min, end_h * 60 + end_min
    if begin_min > 59 or end_min > 59 or begin >= DAY_MIN or end > DAY_MIN:
        raise ValueError(f"'{part}' has a time that no clock shows")
    if end <= begin:
        end += DAY_MIN
    start = _DAYS.index(first) if first else 0
    stop = _DAYS.index(last) if last else (start if first else 6)
    count = (stop - start) % 7 + 1
    return [(day * DAY_MIN + begin, day * DAY_MIN + end) for day in (start + n for n in range(count))]
