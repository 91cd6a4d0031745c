"""The owner's policy, and what goes in and out of the machine in owner.py. Values only.

``now_s`` in every event is monotonic seconds of one clock.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from panal.core.nodes import NodeClass
from panal.core.settings import OwnerSettings
from panal.policy.signs import BusChanged, GpuUse, Signs, Wanted

IN_USE = "in use by its owner"
PAUSED = "paused by its owner"
UNKNOWN = "idle state unknown"
DRAINING = "drained by its operators"
GIVING_BACK = "giving the machine back"
STARTING = "starting"
BATTERY = "on battery"
SLEEP = "about to sleep"
HOT = "too hot"
HOURS = "outside its hours"
DISK = "short of disk space"
LIMIT = "over its owner's limit"
OFFLINE = "no connection"
RESTING = "resting"
NOT_WARM = "the engine did not become ready"
COOLING = "waiting before it starts again"


class Sharing(StrEnum):
    """What an owner's input means. STRICT: it ends work. POLITE: it delays the start, then only the use of
    the GPU counts. SHARE: only the use of the GPU counts. Where that use cannot be seen, both are STRICT."""

    STRICT = "strict"
    POLITE = "polite"
    SHARE = "share"


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
    ``nobody_s``, ``locked_s``: with nobody logged in, or the screen locked, before the node is free.
    ``gpu_counts``: use of the GPU by others ends work, after ``gpu_patience_s``; it must have been free for
    ``gpu_free_s`` before a start. ``work_on_battery``: a battery is no reason.
    ``halve_s``, ``heat_s``: slowed down by heat for so long, half the requests, and then none.
    ``cool_s``: without heat before all requests are taken again.
    ``warm_s_max``: an engine that does not serve after it is stopped, and tried again after the cooldown.
    ``keep_model_s``: how long an idle engine may stay in memory when only input came; 0: not at all.
    ``unload_s``: without a request before an owned node's engine is stopped; 0: never.
    ``bus_unload_s``: without the bus before the engine is stopped.
    """

    owned: bool
    idle_s: float
    cooldown_s: float
    grace_s: float = 2.0
    engine_stop_s: float = 2.0
    memory_back_s_max: float = 10.0
    sensor_stale_s: float = 10.0
    drain_s: float = 10.0
    sharing: Sharing = Sharing.STRICT
    nobody_s: float = 60.0
    locked_s: float = 180.0
    gpu_counts: bool = True
    gpu_patience_s: float = 0.0
    gpu_free_s: float = 60.0
    work_on_battery: bool = False
    halve_s: float = 10.0
    heat_s: float = 40.0
    cool_s: float = 30.0
    warm_s_max: float = 300.0
    keep_model_s: float = 0.0
    unload_s: float = 0.0
    bus_unload_s: float = 600.0
    flaps: int = 3
    flapping_s: float = 3600.0
    cooldown_s_max: float = 3600.0
    calm_s: float = 7200.0


KEEP_FREE_SHARE = 0.5
"""An engine is kept in memory only while so much of each memory is free."""

_DEFAULTS = {
    NodeClass.DEDICATED: OwnerPolicy(
        owned=False, idle_s=0.0, cooldown_s=30.0, drain_s=60.0, gpu_counts=False, gpu_patience_s=5.0,
        gpu_free_s=0.0, bus_unload_s=1800.0, warm_s_max=86_400.0,  # node.start_s_max judges its loads
    ),
    NodeClass.WORKSTATION: OwnerPolicy(
        owned=True, idle_s=300.0, cooldown_s=120.0, sharing=Sharing.POLITE, locked_s=60.0
    ),
    NodeClass.DESKTOP: OwnerPolicy(owned=True, idle_s=900.0, cooldown_s=300.0),
    NodeClass.LAPTOP: OwnerPolicy(owned=True, idle_s=900.0, cooldown_s=300.0),
}  # fmt: skip

_EDITABLE = (
    "idle_s", "cooldown_s", "cooldown_s_max", "grace_s", "engine_stop_s", "memory_back_s_max",
    "sensor_stale_s", "nobody_s", "locked_s", "gpu_counts", "gpu_free_s", "work_on_battery", "halve_s",
    "heat_s", "warm_s_max", "keep_model_s", "unload_s", "bus_unload_s",
)  # fmt: skip


def policy_for(node_class: NodeClass, overrides: OwnerSettings) -> OwnerPolicy:
    """The policy of a class with this machine's overrides. The class comes from the join token."""
    given = {name: getattr(overrides, name) for name in _EDITABLE}
    given["sharing"] = Sharing(overrides.sharing) if overrides.sharing else None
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
    | Signs
    | GpuUse
    | BusChanged
    | Wanted
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


@dataclass(frozen=True, slots=True)
class LimitSlots:
    """Take only this share of the engine's requests at once; 1 is all."""

    share: float


OwnerInstruction = (
    StopTakingWork | HandOverAll | StopEngine | CheckMemory | StartEngine | ReportChange | LimitSlots
)


class EnginePhase(StrEnum):
    """Where the engine and its memory are. OFF means that the memory is back too."""

    OFF = "off"
    STARTING = "starting"
    ON = "on"
    STOPPING = "stopping"
    CHECKING = "checking"
