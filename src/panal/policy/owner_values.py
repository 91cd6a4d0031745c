"""The owner's policy, and what goes in and out of the machine in owner.py. Values only.

``now_s`` in every event is monotonic seconds of one clock.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from panal.core.nodes import NodeClass
from panal.core.settings import OwnerSettings

IN_USE = "in use by its owner"
PAUSED = "paused by its owner"
UNKNOWN = "idle state unknown"
DRAINING = "drained by its operators"
GIVING_BACK = "giving the machine back"
STARTING = "starting"


@dataclass(frozen=True, slots=True)
class OwnerPolicy:
    """How a node yields to its owner. All times in seconds.

    ``idle_s``: without input before the node is free. ``cooldown_s``: the same after it had to yield; it
    doubles, up to ``cooldown_s_max``, when ``flaps`` yields fell into ``flapping_s`` and with every yield
    from then on, and is back at its first value after ``calm_s`` without a yield.
    ``grace_s``: how long attempts may still run once their hand-over began.
    ``engine_stop_s``: an engine that still stops after it is killed, and again each time.
    ``memory_back_s_max``: counted from the input. ``sensor_stale_s``: an older reading counts as input.
    ``drain_s``: attempts may end by themselves while operators drain the node, then they are handed over.
    """

    owned: bool
    idle_s: float
    cooldown_s: float
    grace_s: float = 2.0
    engine_stop_s: float = 2.0
    memory_back_s_max: float = 10.0
    sensor_stale_s: float = 10.0
    drain_s: float = 10.0
    flaps: int = 3
    flapping_s: float = 3600.0
    cooldown_s_max: float = 3600.0
    calm_s: float = 7200.0


_DEFAULTS = {
    NodeClass.DEDICATED: OwnerPolicy(owned=False, idle_s=0.0, cooldown_s=0.0, drain_s=60.0),
    NodeClass.WORKSTATION: OwnerPolicy(owned=True, idle_s=300.0, cooldown_s=120.0),
    NodeClass.DESKTOP: OwnerPolicy(owned=True, idle_s=900.0, cooldown_s=300.0),
    NodeClass.LAPTOP: OwnerPolicy(owned=True, idle_s=900.0, cooldown_s=300.0),
}


def policy_for(node_class: NodeClass, overrides: OwnerSettings) -> OwnerPolicy:
    """The policy of a class with this machine's overrides. The class comes from the join token."""
    names = ("idle_s", "cooldown_s", "grace_s", "engine_stop_s", "memory_back_s_max", "sensor_stale_s")
    given = {name: getattr(overrides, name) for name in names}
    return replace(
        _DEFAULTS[node_class], **{name: value for name, value in given.items() if value is not None}
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """The sensor's word: ``idle_s`` seconds without input, or None with a ``problem`` for the log."""

    now_s: float
    idle_s: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    now_s: float


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    now_s: float


@dataclass(frozen=True, slots=True)
class EngineStarted:
    """The engine serves."""

    now_s: float


@dataclass(frozen=True, slots=True)
class EngineStopped:
    """The engine's processes are gone, because they were told to, crashed or could not start."""

    now_s: float


@dataclass(frozen=True, slots=True)
class MemoryIsBack:
    """The engine's memory was read and is back at what it was before."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Paused:
    """The owner said so on this machine; ``until_s`` monotonic, infinite for until further notice."""

    now_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """The owner takes the pause back. Nobody else can."""

    now_s: float


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Operators want the node empty, or no longer."""

    now_s: float
    drain: bool


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Another policy from the operators or the settings."""

    now_s: float
    policy: OwnerPolicy


@dataclass(frozen=True, slots=True)
class Tick:
    now_s: float


OwnerEvent = (
    Reading
    | AttemptStarted
    | AttemptEnded
    | EngineStarted
    | EngineStopped
    | MemoryIsBack
    | Paused
    | Resumed
    | DrainAsked
    | PolicyChanged
    | Tick
)


@dataclass(frozen=True, slots=True)
class StopTakingWork:
    """From now on refuse every attempt; ``reason`` is coarse and may travel."""

    reason: str


@dataclass(frozen=True, slots=True)
class HandOverAll:
    """Tell the gateways of all running attempts to go on elsewhere, and end them within ``grace_s``."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class StopEngine:
    """End the engine's processes; ``kill`` at once and without asking. Attempts left over end with it."""

    kill: bool


@dataclass(frozen=True, slots=True)
class CheckMemory:
    """Read the engine's memory; MemoryIsBack when it is back. Asked again at each tick until then."""


@dataclass(frozen=True, slots=True)
class StartEngine:
    """Make the engine serve. Whoever does it backs off after failures."""


@dataclass(frozen=True, slots=True)
class ReportChange:
    """State or reason changed, or ``problem`` is news for the log (it does not travel)."""

    problem: str = ""


OwnerInstruction = StopTakingWork | HandOverAll | StopEngine | CheckMemory | StartEngine | ReportChange


class EnginePhase(StrEnum):
    """Where the engine and its memory are. OFF means that the memory is back too."""

    OFF = "off"
    STARTING = "starting"
    ON = "on"
    STOPPING = "stopping"
    CHECKING = "checking"
