"""The owner's local control: files in the agent's home, so that it works with every server unreachable.

``desk/pause.json`` is written by the owner's command and read by the agent; it survives restarts of both.
``desk/status.json`` is written by the agent when something changes, and every STATUS_EVERY_S.
A pause file that cannot be understood is a pause: in doubt the owner wanted one.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from panal.core.clock import Clock
from panal.core.errors import BadRequest
from panal.core.private_files import write_private

STATUS_EVERY_S = 2.0
STATUS_FRESH_S = 6.0
PAUSE_S_MAX = 366 * 86400.0
FILE_BYTES_MAX = 64 * 1024

S = TypeVar("S", bound=msgspec.Struct)


class PauseFile(msgspec.Struct, kw_only=True, omit_defaults=True):
    """``until_utc_s`` None: until the owner resumes."""

    version: int = 1
    paused_utc_s: float
    until_utc_s: float | None = None


class StatusFile(msgspec.Struct, kw_only=True):
    """What the agent last said of itself."""

    version: int = 1
    pid: int
    written_utc_s: float
    state: str
    reason: str
    problem: str = ""
    """The sensor's own words, for the owner's eyes only."""
    sensors: dict[str, str] = {}
    """Each sensor's word. It may name programs: this file is readable for its owner alone."""
    attempts: int = 0
    paused: bool = False
    paused_until_utc_s: float | None = None


@dataclass(frozen=True, slots=True)
class DeskStatus:
    """The agent's status as ``panal desk status`` shows it; ``fresh`` False: the agent does not run."""

    fresh: bool
    age_s: float
    status: StatusFile | None


class Desk:
    """The files of one agent. ``home`` is the agent's home; nothing is created before it is needed."""

    def __init__(self, home: Path, clock: Clock) -> None:
        self._folder = home / "desk"
        self._pause_file = str(self._folder / "pause.json")
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self._pause: PauseFile | None = None
        self.problem = ""
        """Why the pause file was not understood, empty when it was."""

    def pause(self, for_s: float | None = None) -> PauseFile:
        """Take no work for ``for_s`` seconds or until ``resume``. Raises BadRequest, SettingsError."""
        if for_s is not None and not 0 < for_s <= PAUSE_S_MAX:
            raise BadRequest(f"A pause lasts more than 0 and at most {PAUSE_S_MAX:g} seconds.")
        now_s = self._clock.utc_seconds()
        pause = PauseFile(paused_utc_s=now_s, until_utc_s=None if for_s is None else now_s + for_s)
        write_private(self._folder / "pause.json", msgspec.json.encode(pause))
        return pause

    def resume(self) -> bool:
        """End the pause. Returns whether there was one. Raises OSError."""
        try:
            (self._folder / "pause.json").unlink()
        except FileNotFoundError:
            return False
        return True

    def paused_until_utc_s(self) -> float | None:
        """None: not paused; infinite: until further notice. Cheap: the file is read when it has changed."""
        try:
            found = os.stat(self._pause_file)  # noqa: PTH116 - four times a second, for ever
        except FileNotFoundError:
            self._seen = self._pause = None
            self.problem = ""
            return None
        except OSError as error:
            return self._doubtful(f"the pause file cannot be read: {error.strerror}")
        mark = (found.st_mtime_ns, found.st_size, found.st_ino)
        if mark != self._seen:
            try:
                self._pause = _decoded(self._folder / "pause.json", PauseFile)
            except (OSError, msgspec.DecodeError, ValueError) as error:
                return self._doubtful(f"the pause file cannot be understood: {type(error).__name__}")
            self._seen = mark
            self.problem = ""
        until_s = self._pause.until_utc_s if self._pause is not None else None
        if until_s is not None and until_s <= self._clock.utc_seconds():
            return None
        return float("inf") if until_s is None else until_s

    def write_status(
        self, state: str, reason: str, problem: str, attempts: int, sensors: dict[str, str] | None = None
    ) -> None:
        """Called by the agent. Raises SettingsError."""
        until_s = self.paused_until_utc_s()
        status = StatusFile(
            pid=os.getpid(),
            written_utc_s=self._clock.utc_seconds(),
            state=state,
            reason=reason,
            problem=problem or self.problem,
            attempts=attempts,
            sensors=sensors or {},
            paused=until_s is not None,
            paused_until_utc_s=None if until_s is None or until_s == float("inf") else until_s,
        )
        write_private(self._folder / "status.json", msgspec.json.encode(status), durable=False)

    def status(self) -> DeskStatus:
        """What the agent last said, and whether it still says anything."""
        try:
            status = _decoded(self._folder / "status.json", StatusFile)
        except (OSError, msgspec.DecodeError, ValueError):
            return DeskStatus(fresh=False, age_s=float("inf"), status=None)
        age_s = abs(self._clock.utc_seconds() - status.written_utc_s)
        return DeskStatus(fresh=age_s <= STATUS_FRESH_S, age_s=age_s, status=status)

    def _doubtful(self, problem: str) -> float:
        self._seen = None
        self.problem = problem
        return float("inf")


def _decoded(file: Path, kind: type[S]) -> S:
    with file.open("rb") as stream:
        data = stream.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError("too long")
    return msgspec.json.decode(data, type=kind)
