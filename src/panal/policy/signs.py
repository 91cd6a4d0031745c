"""What sensors beside the keyboard's say of a machine, as one value a look. Values only.

Nothing here travels: names of programs and people are not even in these values.
"""

from dataclasses import dataclass
from enum import StrEnum


class People(StrEnum):
    """Who is at the machine itself; UNKNOWN where no session manager can be asked."""

    UNKNOWN = "unknown"
    NOBODY = "nobody"
    LOCKED = "locked"
    HERE = "here"


@dataclass(frozen=True, slots=True)
class Signs:
    """One look at everything but the input and the GPU.

    ``remote_idle_s``: seconds since somebody typed in a remote or terminal session, None where there is none.
    ``busy``: a named program runs, something keeps the screen on, or a session that the input sensor cannot
    see is in use; None where this was to be looked at and could not.
    ``on_battery``: None where a machine with a battery does not tell.
    ``leaving``: the machine is about to sleep or to shut down.
    ``over_limit``: the engine holds more memory than the owner allows.
    ``memory_free_share``: of the main memory, 0 where unknown.
    """

    now_s: float
    people: People = People.UNKNOWN
    remote_idle_s: float | None = None
    busy: bool | None = False
    on_battery: bool | None = False
    in_hours: bool = True
    disk_short: bool = False
    leaving: bool = False
    over_limit: bool = False
    memory_free_share: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One look at the accelerators. Machines without any send none, or one that says that none is ``there``:
    what was told before, while nobody had looked yet, must not stand for ever.

    ``foreign``: a process that is not the engine's computes or draws more than the learnt baseline; None
    where the driver does not tell. ``hot``: it slows down because of heat; None where it does not tell.
    ``memory_free_share``: of the accelerator's memory with the engine loaded, None where unknown.
    """

    now_s: float
    foreign: bool | None
    hot: bool | None = None
    memory_free_share: float | None = None
    there: bool = True


@dataclass(frozen=True, slots=True)
class BusChanged:
    """The connection to the bus came or went."""

    now_s: float
    connected: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """Somebody asked for a node that rests."""

    now_s: float
