"""Everything that the owner's machine (owner.py) knows. A value."""

from dataclasses import dataclass
from math import inf

from panal.core.nodes import NodeState
from panal.policy.owner_values import EnginePhase, OwnerPolicy
from panal.policy.sight import Sight
from panal.policy.signs import GpuUse, Signs


@dataclass(frozen=True, slots=True)
class Owner:
    """``reason`` is why no work is taken, empty when it is. Times are monotonic seconds; -inf is "never",
    inf where a thing that has a beginning is not going on."""

    policy: OwnerPolicy
    state: NodeState
    reason: str
    engine: EnginePhase = EnginePhase.OFF
    attempts: int = 0
    sight: Sight | None = None
    active: bool = True
    """Whether the owner counts as being there; it takes a time without a trace of him or her to end it."""
    signs: Signs | None = None
    people_since_s: float = -inf
    trace_s: float = -inf
    """The last trace of the owner other than input: remote typing, a named program, use of the GPU."""
    gpu: GpuUse | None = None
    gpu_taken_s: float = inf
    gpu_free_s: float = inf
    hot_from_s: float = inf
    hot_until_s: float = -inf
    halved: bool = False
    bus_lost_s: float = inf
    asked_s: float = -inf
    """The newest start or end of an attempt, or start of the engine."""
    resting: bool = False
    warming_from_s: float = inf
    cold_starts: int = 0
    """Starts in a row whose engine did not become ready."""
    not_before_s: float = -inf
    suspended_from_s: float = -inf
    paused_until_s: float = -inf
    draining: bool = False
    leaving_from_s: float = -inf
    """When the yield or the drain that goes on began."""
    handed_over_s: float = inf
    stop_asked_s: float = -inf
    late: bool = False
    yields_s: tuple[float, ...] = ()
    """The newest yields to the owner, at most ``policy.flaps`` of them."""
    cooldown_s: float = 0.0
