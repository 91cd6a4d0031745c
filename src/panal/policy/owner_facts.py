"""The facts of an Owner after an event, before anything is decided. Pure."""

from dataclasses import replace
from math import inf

from panal.policy.owner_judgement import IN_USE_BY_FLEET, took_in
from panal.policy.owner_state import Owner
from panal.policy.owner_values import (
    AttemptEnded,
    AttemptStarted,
    DrainAsked,
    EnginePhase,
    EngineStarted,
    EngineStopped,
    MemoryIsBack,
    OwnerEvent,
    Paused,
    PolicyChanged,
    Reading,
    Resumed,
    Tick,
)
from panal.policy.signs import BusChanged, GpuUse, Signs, Wanted

COLD_S_MIN = 1.0
COLD_DOUBLINGS_MAX = 10


def taken_in(owner: Owner, event: OwnerEvent) -> Owner:
    """What is known after ``event``."""
    match event:
        case Reading() | Signs() | GpuUse():
            return took_in(owner, event)
        case AttemptStarted() | AttemptEnded() | EngineStarted() | EngineStopped() | MemoryIsBack():
            return _work_taken_in(owner, event)
        case Paused():
            return replace(owner, paused_until_s=event.until_s)
        case Resumed():
            return replace(owner, paused_until_s=-inf)
        case BusChanged():
            lost_s = inf if event.connected else min(owner.bus_lost_s, event.now_s)
            return replace(owner, bus_lost_s=lost_s)
        case Wanted():
            return replace(owner, resting=False, asked_s=event.now_s)
        case DrainAsked():
            return replace(owner, draining=event.drain, resting=False, asked_s=event.now_s)
        case PolicyChanged():
            newly_owned = event.policy.owned and not owner.policy.owned
            return replace(owner, policy=event.policy, active=owner.active or newly_owned)
        case Tick():
            return owner


def _work_taken_in(
    owner: Owner, event: AttemptStarted | AttemptEnded | EngineStarted | EngineStopped | MemoryIsBack
) -> Owner:
    match event:
        case AttemptStarted():
            return replace(owner, attempts=owner.attempts + 1, asked_s=event.now_s)
        case AttemptEnded():
            return replace(owner, attempts=max(0, owner.attempts - 1), asked_s=event.now_s)
        case EngineStarted():
            return replace(owner, engine=EnginePhase.ON, asked_s=event.now_s, cold_starts=0)
        case EngineStopped():
            return _engine_gone(owner)
        case MemoryIsBack():
            return replace(owner, engine=EnginePhase.OFF) if owner.engine is EnginePhase.CHECKING else owner


def _engine_gone(owner: Owner) -> Owner:
    if owner.engine is EnginePhase.OFF:
        return owner
    if owner.state in IN_USE_BY_FLEET:
        return replace(owner, engine=EnginePhase.OFF)
    if owner.engine in (EnginePhase.ON, EnginePhase.STARTING):
        # It went by itself: it must still be told to stop, or whoever started it starts it again.
        return replace(owner, engine=EnginePhase.STARTING)
    return replace(owner, engine=EnginePhase.CHECKING)


def cold_start(owner: Owner, now_s: float) -> Owner:
    """The engine did not become ready: wait, each time twice as long."""
    policy = owner.policy
    wait_s = max(policy.cooldown_s, COLD_S_MIN) * 2.0 ** min(owner.cold_starts, COLD_DOUBLINGS_MAX)
    wait_s = min(wait_s, max(policy.cooldown_s_max, policy.cooldown_s))
    return replace(owner, cold_starts=owner.cold_starts + 1, not_before_s=now_s + wait_s)


def yield_counted(owner: Owner, now_s: float) -> Owner:
    """A yield to the owner: often ones double the cooldown, calm resets it."""
    policy = owner.policy
    calm = not owner.yields_s or now_s - owner.yields_s[-1] >= policy.calm_s
    yields_s = (() if calm else owner.yields_s) + (now_s,)
    yields_s = yields_s[-policy.flaps :]
    cooldown_s = policy.cooldown_s if calm else owner.cooldown_s
    often = len(yields_s) == policy.flaps and now_s - yields_s[0] <= policy.flapping_s
    if often or cooldown_s > policy.cooldown_s:
        cooldown_s = min(max(2 * cooldown_s, 1.0), max(policy.cooldown_s_max, policy.cooldown_s))
    return replace(owner, yields_s=yields_s, cooldown_s=cooldown_s)
