"""Who comes first at the moment, and why: the facts of an Owner judged. Pure.

``took_in`` puts a sensor's word among the facts; ``away_reason`` says why no work is done now;
``entry_reason`` what else must hold before an engine is started. Reasons are coarse: they travel.
"""

from dataclasses import replace
from math import inf

from panal.core.nodes import NodeState
from panal.policy import owner_values as values
from panal.policy.owner_state import Owner
from panal.policy.owner_values import Reading, Sharing
from panal.policy.sight import see
from panal.policy.signs import GpuUse, People, Signs

IN_USE_BY_FLEET = (NodeState.STARTING, NodeState.AVAILABLE, NodeState.SERVING)
ABSENT = (People.NOBODY, People.LOCKED)
TRACE_S = 1.0
"""A remote session whose last typing moved by less has not been used: its times are coarse."""


def away_reason(owner: Owner, now_s: float) -> str | None:
    """Why the node does no work at the moment, None when nothing stands against it."""
    if now_s < owner.paused_until_s:
        return values.PAUSED
    reason = _machine_reason(owner, now_s) or _gpu_reason(owner, now_s)
    if reason is not None:
        return reason
    if owner.policy.owned:
        reason = _owner_reason(owner, now_s)
    return reason or (values.RESTING if owner.resting else None)


def entry_reason(owner: Owner, now_s: float) -> str | None:
    """Why an engine is not started although nobody is away; asked when none is there."""
    policy, signs = owner.policy, owner.signs
    if signs is not None and signs.disk_short:
        return values.DISK
    if owner.hot_from_s < inf:
        return values.HOT
    if policy.gpu_counts and owner.gpu is not None and now_s - owner.gpu_free_s < policy.gpu_free_s:
        return values.IN_USE
    return None


def wants_empty(owner: Owner) -> bool:
    """Whether the node drains: its operators said so, or a server runs on its battery."""
    return owner.draining or _server_on_battery(owner)


def empty_reason(owner: Owner) -> str:
    return values.DRAINING if owner.draining or not _server_on_battery(owner) else values.BATTERY


def may_keep_engine(owner: Owner, away: str | None, now_s: float) -> bool:
    """Whether the idle engine may stay in memory although the owner is there."""
    policy, signs, gpu = owner.policy, owner.signs, owner.gpu
    if away != values.IN_USE or policy.keep_model_s <= 0 or wants_empty(owner) or signs is None:
        return False
    if signs.busy is not False or _stale(owner, signs.now_s, now_s):
        return False
    shares = [signs.memory_free_share]
    if gpu is not None:
        if gpu.foreign is not False or gpu.memory_free_share is None:
            return False
        shares.append(gpu.memory_free_share)
    return min(shares) >= values.KEEP_FREE_SHARE


def required_idle_s(owner: Owner, now_s: float, without_yield_s: float | None = None) -> float:
    """How long there must be no trace of the owner before the machine is free.

    ``without_yield_s``: what is asked for where no yield came before; the default is that of input.
    """
    policy = owner.policy
    idle_s = policy.idle_s if without_yield_s is None else without_yield_s
    if not owner.yields_s:
        return idle_s
    calm = now_s - owner.yields_s[-1] >= policy.calm_s
    return max(idle_s, policy.cooldown_s if calm else owner.cooldown_s)


def took_in(owner: Owner, event: Reading | Signs | GpuUse) -> Owner:
    """The facts after a sensor's word."""
    match event:
        case Reading():
            return _saw(owner, event) if owner.policy.owned else owner
        case Signs():
            return _judged(_noticed(owner, event), event.now_s)
        case GpuUse():
            return _judged(_gpu_seen(owner, event), event.now_s)


def sensor_stale(owner: Owner, now_s: float) -> bool:
    """Whether the input sensor was silent for too long."""
    return owner.sight is None or _stale(owner, owner.sight.read_s, now_s)


def _saw(owner: Owner, reading: Reading) -> Owner:
    before = owner.sight
    sight = see(before, reading)
    if before is not None and reading.now_s - before.read_s > owner.policy.sensor_stale_s:
        sight = replace(sight, input_s=reading.now_s)
    touched = before is not None and sight.input_s > before.input_s
    if sight.problem:
        touched = not _absent(owner, reading.now_s)
    return _judged(replace(owner, sight=sight, active=owner.active or touched), reading.now_s)


def _noticed(owner: Owner, signs: Signs) -> Owner:
    before, now_s = owner.signs, signs.now_s
    changed = before is None or before.people is not signs.people
    owner = replace(owner, signs=signs, people_since_s=now_s if changed else owner.people_since_s)
    came = changed and before is not None and before.people in ABSENT and signs.people not in ABSENT
    if signs.remote_idle_s is not None and now_s - signs.remote_idle_s > owner.trace_s + TRACE_S:
        # The first word of an old session is no news; one that says "now" is.
        came = came or before is not None or signs.remote_idle_s <= TRACE_S
        owner = replace(owner, trace_s=now_s - signs.remote_idle_s)
    if signs.busy is not False:
        owner = replace(owner, trace_s=now_s, active=True)
    return replace(owner, active=True, trace_s=now_s) if came else owner


def _gpu_seen(owner: Owner, use: GpuUse) -> Owner:
    now_s = use.now_s
    if not use.there:
        return replace(owner, gpu=None, gpu_taken_s=inf, gpu_free_s=inf, hot_from_s=inf)
    if use.foreign:
        taken = min(owner.gpu_taken_s, now_s)
        owner = replace(owner, gpu_taken_s=taken, gpu_free_s=inf)
        if now_s - taken >= owner.policy.gpu_patience_s and owner.policy.gpu_counts:
            owner = replace(owner, trace_s=now_s, active=True)
    else:
        free_s = inf if use.foreign is None else min(owner.gpu_free_s, now_s)
        owner = replace(owner, gpu_taken_s=inf, gpu_free_s=free_s)
    if use.hot:
        owner = replace(owner, hot_from_s=min(owner.hot_from_s, now_s), hot_until_s=now_s)
    else:
        owner = replace(owner, hot_from_s=inf)
    return replace(owner, gpu=use)


def _judged(owner: Owner, now_s: float) -> Owner:
    """Ends ``active`` where there was no trace of the owner for long enough."""
    policy, sight = owner.policy, owner.sight
    if not policy.owned or not owner.active:
        return owner
    seen = sight is not None and not sight.problem and not sensor_stale(owner, now_s)
    trace_s = owner.trace_s
    if sight is not None and seen:
        trace_s = max(trace_s, sight.input_s)
    free = seen and now_s - trace_s >= required_idle_s(owner, now_s)
    if not free and _absent(owner, now_s) and owner.signs is not None:
        alone_s = policy.nobody_s if owner.signs.people is People.NOBODY else policy.locked_s
        since_s = max(trace_s, owner.people_since_s)
        free = now_s - since_s >= required_idle_s(owner, now_s, alone_s)
    return replace(owner, active=False) if free else owner


def _machine_reason(owner: Owner, now_s: float) -> str | None:
    """What holds on machines of every class."""
    signs, policy = owner.signs, owner.policy
    if signs is not None:
        for holds, reason in (
            (signs.leaving, values.SLEEP),
            (not signs.in_hours, values.HOURS),
            (signs.over_limit, values.LIMIT),
            (policy.owned and signs.on_battery is True and not policy.work_on_battery, values.BATTERY),
        ):
            if holds:
                return reason
    if now_s - owner.hot_from_s >= policy.heat_s:
        return values.HOT
    return values.OFFLINE if now_s - owner.bus_lost_s >= policy.bus_unload_s else None


def _gpu_reason(owner: Owner, now_s: float) -> str | None:
    gpu, policy = owner.gpu, owner.policy
    if gpu is None or not policy.gpu_counts:
        return None
    if now_s - owner.gpu_taken_s >= policy.gpu_patience_s:
        return values.IN_USE
    blind = gpu.foreign is None or _stale(owner, gpu.now_s, now_s)
    return values.UNKNOWN if blind and policy.owned else None


def _owner_reason(owner: Owner, now_s: float) -> str | None:
    signs = owner.signs
    if signs is not None:
        if _stale(owner, signs.now_s, now_s) or signs.busy is None:
            return values.UNKNOWN
        if signs.on_battery is None and not owner.policy.work_on_battery:
            return values.UNKNOWN
        if signs.busy:
            return values.IN_USE
    if _input_is_ignored(owner):
        return None
    blind = sensor_stale(owner, now_s) or (owner.sight is not None and bool(owner.sight.problem))
    if blind and not _absent(owner, now_s):
        return values.UNKNOWN
    return values.IN_USE if owner.active else None


def _input_is_ignored(owner: Owner) -> bool:
    """Only where the use of the GPU is seen does it stand for its owner."""
    sharing = owner.policy.sharing
    if owner.gpu is None or not owner.policy.gpu_counts or sharing is Sharing.STRICT:
        return False
    return sharing is Sharing.SHARE or owner.state in IN_USE_BY_FLEET


def _absent(owner: Owner, now_s: float) -> bool:
    """Whether a session manager says, now, that nobody is at the machine."""
    signs = owner.signs
    return signs is not None and signs.people in ABSENT and not _stale(owner, signs.now_s, now_s)


def _server_on_battery(owner: Owner) -> bool:
    return not owner.policy.owned and owner.signs is not None and owner.signs.on_battery is True


def _stale(owner: Owner, told_s: float, now_s: float) -> bool:
    return now_s - told_s > owner.policy.sensor_stale_s
