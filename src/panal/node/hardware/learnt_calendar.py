"""The calendar of this machine's owner, kept on this machine. Only its rounded hazards leave it."""

import logging
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import msgspec

from panal.core.clock import Clock
from panal.core.errors import SettingsError
from panal.core.private_files import write_private
from panal.policy.calendar import Calendar, calendar_from, hazards_to_tell, learnt, rows_of

LEARN_EACH_S = 30.0
KEEP_EACH_S = 900.0
FILE_BYTES_MAX = 64 * 1024


class CalendarFile(msgspec.Struct, kw_only=True):
    """168 rows of three numbers."""

    version: int = 1
    told_utc_s: float
    rows: list[tuple[float, float, float]]


class LearntCalendar:
    """``file`` is read at the first use; one that cannot be read is begun anew."""

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._calendar: Calendar | None = None
        self._learnt_s = -inf
        self._kept_s = clock.monotonic_seconds()
        self._was_free = False
        self._log = logging.getLogger("panal.node.owner")

    def learn(self, *, free: bool) -> None:
        """Called at each poll; takes a look in when it is time, and at once when the owner came or went."""
        now_s = self._clock.monotonic_seconds()
        if free == self._was_free and now_s - self._learnt_s < LEARN_EACH_S:
            return
        self._learnt_s, self._was_free = now_s, free
        utc_s, offset_s = self._local()
        self._calendar = learnt(self._read(), utc_s, offset_s, free=free)
        if now_s - self._kept_s >= KEEP_EACH_S:
            self.keep()

    def hazards_per_h(self) -> list[float]:
        """Of this hour and the next, rounded."""
        return hazards_to_tell(self._read(), *self._local())

    def keep(self) -> None:
        """Write it down."""
        self._kept_s = self._clock.monotonic_seconds()
        if self._calendar is None:
            return
        kept = CalendarFile(told_utc_s=self._calendar.told_s, rows=rows_of(self._calendar))
        try:
            write_private(self._file, msgspec.json.encode(kept), durable=False)
        except SettingsError as error:
            self._log.warning("the calendar cannot be kept: %s", error.message)

    def _local(self) -> tuple[float, float]:
        utc_s = self._clock.utc_seconds()
        offset = datetime.fromtimestamp(utc_s, UTC).astimezone().utcoffset()
        return utc_s, offset.total_seconds() if offset is not None else 0.0

    def _read(self) -> Calendar:
        if self._calendar is None:
            self._calendar = self._from_file() or Calendar()
        return self._calendar

    def _from_file(self) -> Calendar | None:
        try:
            with self._file.open("rb") as stream:
                data = stream.read(FILE_BYTES_MAX + 1)
            kept = msgspec.json.decode(data, type=CalendarFile)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, ValueError) as error:
            self._log.warning("the kept calendar cannot be read: %s", type(error).__name__)
            return None
        return calendar_from(kept.rows, kept.told_utc_s)
