"""The owner's own limits: a file in the agent's home, written by ``panal desk limits``.

A file that cannot be understood allows no work: in doubt the owner wanted less.
"""

import os
from pathlib import Path

import msgspec

from panal.core.errors import BadRequest
from panal.core.private_files import write_private
from panal.core.settings import OwnerSettings
from panal.policy.desk_limits import Limits, joined
from panal.policy.hours import hours_fault

FILE_BYTES_MAX = 64 * 1024
PROGRAMS_MAX = 200
PROGRAM_LENGTH_MAX = 100


class LimitsFile(msgspec.Struct, kw_only=True, omit_defaults=True):
    """``desk/limits.json``. None and empty: no limit of the owner's."""

    version: int = 1
    memory_bytes_max: int | None = None
    gpu_memory_bytes_max: int | None = None
    power_w_max: float | None = None
    hours: str = ""
    programs: list[str] = []


def operators_limits(settings: OwnerSettings) -> Limits:
    """What the settings of this machine's operators say; 0 is no cap there."""
    return Limits(
        memory_bytes_max=settings.memory_bytes_max or None,
        gpu_memory_bytes_max=settings.gpu_memory_bytes_max or None,
        power_w_max=settings.power_w_max or None,
        hours=(settings.hours,) if settings.hours else (),
        programs=frozenset(name.lower() for name in settings.programs),
    )


class DeskLimits:
    """``home`` is the agent's home."""

    def __init__(self, home: Path) -> None:
        self._file = home / "desk" / "limits.json"
        self._path = str(self._file)
        self._seen: tuple[int, int, int] | None = None
        self._limits = Limits()
        self._joined: tuple[Limits, Limits, Limits] | None = None
        self.problem = ""

    def owner(self) -> LimitsFile:
        """What the owner wrote. Raises BadRequest where it cannot be understood."""
        try:
            return _decoded(self._file)
        except FileNotFoundError:
            return LimitsFile()
        except (OSError, msgspec.DecodeError, ValueError) as error:
            raise BadRequest(
                f"{self._file} cannot be understood: {error}. Delete it and begin anew."
            ) from None

    def write(self, limits: LimitsFile) -> None:
        """Raises BadRequest for what is no limit, SettingsError where the file cannot be written."""
        fault = _fault(limits)
        if fault is not None:
            raise BadRequest(fault)
        write_private(self._file, msgspec.json.encode(limits))

    def read(self) -> Limits:
        """The owner's limits now. Cheap: the file is read when it has changed."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - at each poll, for ever
        except FileNotFoundError:
            if self._seen is not None or self.problem:
                self._seen, self._limits, self.problem = None, Limits(), ""
            return self._limits
        except OSError as error:
            return self._doubtful(error)
        mark = (found.st_mtime_ns, found.st_size, found.st_ino)
        if mark != self._seen:
            try:
                self._limits = _limits(_decoded(self._file))
            except (OSError, msgspec.DecodeError, ValueError) as error:
                return self._doubtful(error)
            self._seen, self.problem = mark, ""
        return self._limits

    def with_operators(self, operators: Limits) -> Limits:
        """Both together: the stricter of the two everywhere. Cheap while neither changes."""
        owner = self.read()
        if self._joined is None or self._joined[0] is not operators or self._joined[1] is not owner:
            self._joined = (operators, owner, joined(operators, owner))
        return self._joined[2]

    def _doubtful(self, error: Exception) -> Limits:
        self._seen = None
        self.problem = f"the owner's limits cannot be understood: {type(error).__name__}"
        self._limits = Limits(closed=True)
        return self._limits


def _decoded(file: Path) -> LimitsFile:
    with file.open("rb") as stream:
        data = stream.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError("too long")
    found = msgspec.json.decode(data, type=LimitsFile)
    fault = _fault(found)
    if fault is not None:
        raise ValueError(fault)
    return found


def _fault(limits: LimitsFile) -> str | None:
    caps = (limits.memory_bytes_max, limits.gpu_memory_bytes_max, limits.power_w_max)
    if any(cap is not None and not 0 <= cap < 2**53 for cap in caps):
        return "A cap is a number of bytes or watts, 0 or more."
    fault = hours_fault(limits.hours)
    if fault is not None:
        return f"'{limits.hours[:100]}' {fault}."
    if len(limits.programs) > PROGRAMS_MAX or any(
        not 0 < len(name.strip()) <= PROGRAM_LENGTH_MAX for name in limits.programs
    ):
        return f"At most {PROGRAMS_MAX} programs, each with a name of at most {PROGRAM_LENGTH_MAX} letters."
    return None


def _limits(file: LimitsFile) -> Limits:
    return Limits(
        memory_bytes_max=file.memory_bytes_max,
        gpu_memory_bytes_max=file.gpu_memory_bytes_max,
        power_w_max=file.power_w_max,
        hours=(file.hours,) if file.hours else (),
        programs=frozenset(name.lower() for name in file.programs),
    )
