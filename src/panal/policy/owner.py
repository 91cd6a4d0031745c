"""A node between its owner and the fleet: a pure state machine.

    owner, instructions = begin(policy, now_s)
    owner, instructions = handle(owner, event)

*away* means that the owner comes first: paused on this machine, or (on owned machines) input, an unknown
or a stale sensor. Once away, a machine is free again after ``idle_s`` without input, or ``cooldown_s``
after a yield if that is longer. On a dedicated machine only a pause counts. E is the engine.

    from        when                                    to         instructions
    OWNER       neither away nor draining               STARTING   start E
    OWNER       draining                                DRAINING
    OWNER       E is there all the same                 YIELDING   stop taking work, stop E
    STARTING    E serves                                AVAILABLE
    AVAILABLE   an attempt runs                         SERVING
    SERVING     none runs                               AVAILABLE
    these 3     E is gone                               STARTING   start E
    these 3     draining                                DRAINING   stop taking work
    these 3     away                                    YIELDING   stop taking work, hand over all
    YIELDING    no attempt left, or grace over          same       stop E
    YIELDING    E still there after engine_stop_s       same       stop E by killing, again and again
    YIELDING    E gone, each tick                       same       check memory
    YIELDING    memory not back in time                 same       report it; no work until it is back
    YIELDING    E gone and its memory back              OWNER, or DRAINING when draining
    DRAINING    drain_s over and attempts left          same       hand over all
    DRAINING    no attempt left, or grace over          same       stop E (then as in YIELDING)
    DRAINING    away while E is there                   YIELDING   stop taking work, hand over all
    DRAINING    no longer draining                      OWNER, YIELDING or AVAILABLE/SERVING, by E

A change of state or reason is reported. An attempt that starts where none may is handed over at once.
Nothing ends a pause but its time and the owner: no policy, drain or sensor.
"""

from dataclasses import dataclass, replace
from math import inf

from panal.core.nodes import NodeState
from panal.policy import owner_values as values
from panal.policy.owner_values import (
    AttemptEnded,
    AttemptStarted,
    CheckMemory,
    DrainAsked,
    EnginePhase,
    EngineStarted,
    EngineStopped,
    HandOverAll,
    MemoryIsBack,
    OwnerEvent,
    OwnerInstruction,
    OwnerPolicy,
    Paused,
    PolicyChanged,
    Reading,
    ReportChange,
    Resumed,
    StartEngine,
    StopEngine,
    StopTakingWork,
    Tick,
)
from panal.policy.sight import Sight, see

_IN_USE_BY_FLEET = (NodeState.STARTING, NodeState.AVAILABLE, NodeState.SERVING)

Step = tuple["Owner", list[OwnerInstruction]]


@dataclass(frozen=True, slots=True)
class Owner:
    """Everything the machine knows. ``reason`` is why no work is taken, empty when it is."""

    policy: OwnerPolicy
    state: NodeState
    reason: str
    engine: EnginePhase = EnginePhase.OFF
    attempts: int = 0
    sight: Sight | None = None
    active: bool = True
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


def begin(policy: OwnerPolicy, now_s: float, paused_until_s: float = -inf) -> Step:
    """A machine that has just started, its engine off."""
    owner = Owner(policy, NodeState.OWNER, "", paused_until_s=paused_until_s, cooldown_s=policy.cooldown_s)
    return _reported(owner, _settled(owner, now_s, ticked=False), now_s)


def handle(owner: Owner, event: OwnerEvent) -> Step:
    """Take in an event. Returns the machine after it and what is to be done, in this order."""
    now_s = event.now_s
    after = _taken_in(owner, event)
    ticked = isinstance(event, (Tick, EngineStopped))
    changed, instructions = _settled(after, now_s, ticked=ticked)
    if isinstance(event, AttemptStarted):
        instructions += _late_attempt(changed, now_s, instructions)
    return _reported(owner, (changed, instructions), now_s)


def away_reason(owner: Owner, now_s: float) -> str | None:
    """Why the owner comes first at the moment, None when he or she does not."""
    if now_s < owner.paused_until_s:
        return values.PAUSED
    if not owner.policy.owned:
        return None
    if owner.sight is None or owner.sight.problem or _stale(owner, now_s):
        return values.UNKNOWN
    return values.IN_USE if owner.active else None


def required_idle_s(owner: Owner, now_s: float) -> float:
    """How long there must be no input before the machine is free."""
    if not owner.yields_s:
        return owner.policy.idle_s
    calm = now_s - owner.yields_s[-1] >= owner.policy.calm_s
    return max(owner.policy.idle_s, owner.policy.cooldown_s if calm else owner.cooldown_s)


def _taken_in(owner: Owner, event: OwnerEvent) -> Owner:
    """The facts after the event, no decision taken yet."""
    match event:
        case Reading():
            return _seen(owner, event)
        case AttemptStarted():
            return replace(owner, attempts=owner.attempts + 1)
        case AttemptEnded():
            return replace(owner, attempts=max(0, owner.attempts - 1))
        case EngineStarted():
            return replace(owner, engine=EnginePhase.ON)
        case EngineStopped():
            return _engine_gone(owner)
        case MemoryIsBack():
            return replace(owner, engine=EnginePhase.OFF) if owner.engine is EnginePhase.CHECKING else owner
        case Paused():
            return replace(owner, paused_until_s=event.until_s)
        case Resumed():
            return replace(owner, paused_until_s=-inf)
        case DrainAsked():
            return replace(owner, draining=event.drain)
        case PolicyChanged():
            newly_owned = event.policy.owned and not owner.policy.owned
            return replace(owner, policy=event.policy, active=owner.active or newly_owned)
        case Tick():
            return owner


def _late_attempt(owner: Owner, now_s: float, told: list[OwnerInstruction]) -> list[OwnerInstruction]:
    """An attempt that crossed with the end of taking work gets what is left of the grace."""
    leaving = owner.state is not NodeState.DRAINING or owner.handed_over_s < inf
    if owner.state.takes_work or not leaving or any(isinstance(one, HandOverAll) for one in told):
        return []
    left_s = owner.handed_over_s + owner.policy.grace_s - now_s
    return [HandOverAll(left_s if 0 < left_s < inf else 0.0)]


def _seen(owner: Owner, reading: Reading) -> Owner:
    if not owner.policy.owned:
        return owner
    before = owner.sight
    sight = see(before, reading)
    gap = before is not None and reading.now_s - before.read_s > owner.policy.sensor_stale_s
    if gap:
        sight = replace(sight, input_s=reading.now_s)
    touched = before is not None and sight.input_s > before.input_s
    owner = replace(owner, sight=sight, active=owner.active or touched or bool(sight.problem))
    free = not sight.problem and sight.read_s - sight.input_s >= required_idle_s(owner, reading.now_s)
    return replace(owner, active=False) if free else owner


def _engine_gone(owner: Owner) -> Owner:
    if owner.engine is EnginePhase.OFF:
        return owner
    if owner.state in _IN_USE_BY_FLEET:
        return replace(owner, engine=EnginePhase.OFF)
    if owner.engine in (EnginePhase.ON, EnginePhase.STARTING):
        # It went by itself: it must still be told to stop, or whoever started it starts it again.
        return replace(owner, engine=EnginePhase.STARTING)
    return replace(owner, engine=EnginePhase.CHECKING)


def _settled(owner: Owner, now_s: float, *, ticked: bool) -> Step:
    """Go on from the facts, as far as they lead. Ends: every repetition changes the state at most once."""
    away = away_reason(owner, now_s)
    if owner.state is NodeState.YIELDING:
        return _yielding(owner, now_s, away, ticked=ticked)
    if away is not None and (owner.state in _IN_USE_BY_FLEET or owner.engine is not EnginePhase.OFF):
        return _yield_begins(owner, now_s, away, ticked=ticked)
    if owner.state is NodeState.DRAINING:
        return _draining(owner, now_s, ticked=ticked)
    if owner.state is NodeState.OWNER:
        return _with_owner(owner, now_s, away, ticked=ticked)
    return _with_fleet(owner, now_s, ticked=ticked)


def _with_owner(owner: Owner, now_s: float, away: str | None, *, ticked: bool) -> Step:
    if owner.engine is not EnginePhase.OFF:
        return _yield_begins(owner, now_s, values.GIVING_BACK, ticked=ticked)
    if owner.draining:
        return replace(owner, state=NodeState.DRAINING, reason=values.DRAINING), []
    if away is not None:
        return replace(owner, reason=away), []
    return _starting(owner)


def _starting(owner: Owner) -> Step:
    started = replace(owner, state=NodeState.STARTING, reason=values.STARTING, engine=EnginePhase.STARTING)
    return started, [StartEngine()]


def _with_fleet(owner: Owner, now_s: float, *, ticked: bool) -> Step:
    if owner.draining:
        began = replace(
            owner,
            state=NodeState.DRAINING,
            reason=values.DRAINING,
            leaving_from_s=now_s,
            handed_over_s=inf,
        )
        after, more = _draining(began, now_s, ticked=ticked)
        return after, [StopTakingWork(values.DRAINING), *more]
    if owner.engine is EnginePhase.OFF:
        return _starting(owner)
    if owner.engine is not EnginePhase.ON:
        return owner, []
    state = NodeState.SERVING if owner.attempts else NodeState.AVAILABLE
    return replace(owner, state=state, reason=""), []


def _draining(owner: Owner, now_s: float, *, ticked: bool) -> Step:
    if not owner.draining:
        return _undrained(owner, now_s, ticked=ticked)
    if owner.engine is EnginePhase.OFF:
        return owner, []
    if owner.engine is EnginePhase.ON and owner.attempts:
        if owner.handed_over_s == inf and now_s - owner.leaving_from_s >= owner.policy.drain_s:
            return replace(owner, handed_over_s=now_s), [HandOverAll(owner.policy.grace_s)]
        if now_s - owner.handed_over_s < owner.policy.grace_s:
            return owner, []
    return _engine_down(owner, now_s, ticked=ticked)


def _undrained(owner: Owner, now_s: float, *, ticked: bool) -> Step:
    if owner.engine is EnginePhase.OFF:
        return _settled(replace(owner, state=NodeState.OWNER), now_s, ticked=ticked)
    if owner.engine is EnginePhase.ON:
        return _with_fleet(replace(owner, state=NodeState.AVAILABLE), now_s, ticked=ticked)
    return _yield_begins(owner, now_s, values.GIVING_BACK, ticked=ticked)


def _yield_begins(owner: Owner, now_s: float, reason: str, *, ticked: bool) -> Step:
    if reason in (values.IN_USE, values.UNKNOWN):
        owner = _yield_counted(owner, now_s)
    owner = replace(
        owner, state=NodeState.YIELDING, reason=reason, leaving_from_s=now_s, handed_over_s=now_s, late=False
    )
    first: list[OwnerInstruction] = [StopTakingWork(reason)]
    if owner.attempts:
        first.append(HandOverAll(owner.policy.grace_s))
    after, more = _yielding(owner, now_s, reason, ticked=ticked)
    return after, first + more


def _yielding(owner: Owner, now_s: float, away: str | None, *, ticked: bool) -> Step:
    owner = replace(owner, reason=away or values.GIVING_BACK)
    if owner.engine is EnginePhase.OFF:
        return _settled(replace(owner, state=NodeState.OWNER), now_s, ticked=ticked)
    instructions: list[OwnerInstruction] = []
    limit_s = owner.policy.memory_back_s_max
    if not owner.late and now_s - owner.leaving_from_s >= limit_s:
        owner = replace(owner, late=True)
        instructions.append(ReportChange(f"the engine's memory is not back after {limit_s:g} s"))
    grace_left = now_s - owner.handed_over_s < owner.policy.grace_s
    if owner.engine is EnginePhase.ON and owner.attempts and grace_left:
        return owner, instructions
    after, more = _engine_down(owner, now_s, ticked=ticked)
    return after, instructions + more


def _engine_down(owner: Owner, now_s: float, *, ticked: bool) -> Step:
    """The next step towards an engine that is gone and has left no memory behind."""
    if owner.engine in (EnginePhase.ON, EnginePhase.STARTING):
        return replace(owner, engine=EnginePhase.STOPPING, stop_asked_s=now_s), [StopEngine(kill=False)]
    if owner.engine is EnginePhase.STOPPING and now_s - owner.stop_asked_s >= owner.policy.engine_stop_s:
        return replace(owner, stop_asked_s=now_s), [StopEngine(kill=True)]
    if owner.engine is EnginePhase.CHECKING and ticked:
        return owner, [CheckMemory()]
    return owner, []


def _yield_counted(owner: Owner, now_s: float) -> Owner:
    policy = owner.policy
    calm = not owner.yields_s or now_s - owner.yields_s[-1] >= policy.calm_s
    yields_s = (() if calm else owner.yields_s) + (now_s,)
    yields_s = yields_s[-policy.flaps :]
    cooldown_s = policy.cooldown_s if calm else owner.cooldown_s
    often = len(yields_s) == policy.flaps and now_s - yields_s[0] <= policy.flapping_s
    if often or cooldown_s > policy.cooldown_s:
        cooldown_s = min(max(2 * cooldown_s, 1.0), max(policy.cooldown_s_max, policy.cooldown_s))
    return replace(owner, yields_s=yields_s, cooldown_s=cooldown_s)


def _stale(owner: Owner, now_s: float) -> bool:
    return owner.sight is None or now_s - owner.sight.read_s > owner.policy.sensor_stale_s


def _reported(before: Owner, step: Step, now_s: float) -> Step:
    """Reports a change of state or reason, and a sensor's new problem with its words."""
    after, instructions = step
    problem = ""
    if after.sight is not None and after.sight.problem:
        same = before.sight is not None and before.sight.problem == after.sight.problem
        problem = "" if same else after.sight.problem
    elif after.policy.owned and after.reason == values.UNKNOWN and before.reason != values.UNKNOWN:
        problem = "the sensor is silent" if _stale(after, now_s) else ""
    if problem or (before.state, before.reason) != (after.state, after.reason):
        instructions.append(ReportChange(problem))
    return after, instructions
