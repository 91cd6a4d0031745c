"""Words about accelerators: what a driver told of each. None means that it did not tell, never 0.

Names of processes stand here for people at the machine itself; nothing of a process travels.
"""

from dataclasses import dataclass, field
from enum import StrEnum

GIB = 1024**3
MIB = 1024**2


class GpuVendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that has something on a GPU. ``busy_share`` (0 to 1) is its part of the GPU's time.

    One that computes and draws counts as drawing: desktops and browsers do both.
    """

    pid: int
    computes: bool
    draws: bool = False
    memory_bytes: int | None = None
    busy_share: float | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU at one moment. ``uuid`` is its identity; ``index`` may change with every start.

    ``problem`` says why nothing could be read of it; ``lost`` that the driver knows it and cannot use it.
    ``throttle`` holds words for what slows it down (empty: nothing does); ``energy_j`` only ever grows
    while the driver stays loaded. ``processes`` None: the driver does not tell them.
    """

    uuid: str
    vendor: GpuVendor
    index: int
    name: str = ""
    driver: str = ""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    busy_share: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    clock_mhz: int | None = None
    throttle: frozenset[str] | None = None
    processes: tuple[GpuProcess, ...] | None = None
    lost: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at all GPUs. ``at_s`` is monotonic.

    ``problem`` not empty: the look failed, and ``gpus`` says nothing. ``no_driver``: this machine has no
    driver for GPUs at all, which is an answer and no failure.
    """

    at_s: float
    gpus: tuple[GpuFacts, ...] = ()
    problem: str = ""
    late: bool = False
    """The look failed because the driver did not answer in time."""
    no_driver: bool = False
    own: frozenset[int] = field(default_factory=frozenset)
    """The processes of our own engine, and all that they started, at that moment."""


class ForeignUse(StrEnum):
    """Whether somebody else uses a GPU of this machine."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Thermal(StrEnum):
    OK = "ok"
    HOT = "hot"
    UNKNOWN = "unknown"
