"""A node between its owner and the fleet: a pure state machine.

    owner, instructions = begin(policy, now_s)
    owner, instructions = handle(owner, event)

*away* means that something comes before work: a pause on this machine; sleep, hours, heat, a limit, a lost
bus; others on the GPU; and, on owned machines, the owner (presence.py judges all of it). E is the engine.

    from        when                                    to         instructions
    OWNER       neither away nor draining               STARTING   start E
    OWNER       the same, but a wait is not over        COOLDOWN
    OWNER       draining                                DRAINING
    OWNER       E is there all the same                 YIELDING   stop taking work, stop E
    COOLDOWN    as OWNER; away                          OWNER
    STARTING    E serves                                AVAILABLE
    STARTING    E does not serve after warm_s_max       YIELDING   then COOLDOWN, longer each time
    AVAILABLE   an attempt runs                         SERVING
    SERVING     none runs                               AVAILABLE
    these 3     E is gone                               STARTING   start E
    these 3     draining                                DRAINING   stop taking work
    these 3     away                                    YIELDING   stop taking work, hand over all
    these 3     hot for halve_s; cool for cool_s        same       half the slots; all of them
    YIELDING    no attempt left, or grace over          same       stop E
    YIELDING    no attempt left, E may be kept          SUSPENDED
    YIELDING    E still there after engine_stop_s       same       stop E by killing, again and again
    YIELDING    E gone, each tick                       same       check memory
    YIELDING    memory not back in time                 same       report it; no work until it is back
    YIELDING    E gone and its memory back              OWNER, or DRAINING when draining
    SUSPENDED   no longer away                          AVAILABLE
    SUSPENDED   keep_model_s over, room needed, E gone  YIELDING   stop E
    DRAINING    drain_s over and attempts left          same       hand over all
    DRAINING    no attempt left, or grace over          same       stop E (then as in YIELDING)
    DRAINING    away while E is there                   YIELDING   stop taking work, hand over all
    DRAINING    no longer draining                      OWNER, YIELDING or AVAILABLE/SERVING, by E

A change of state or reason is reported. An attempt that starts where none may is handed over at once.
Nothing ends a pause but its time and the owner: no policy, drain or sensor. STARTING is what the plans
call warming.
"""

from dataclasses import replace
from math import inf

from panal.core.nodes import NodeState
from panal.policy import owner_values as values
from panal.policy.owner_facts import cold_start, taken_in, yield_counted
from panal.policy.owner_judgement import (
    IN_USE_BY_FLEET,
    away_reason,
    empty_reason,
    entry_reason,
    may_keep_engine,
    sensor_stale,
    wants_empty,
)
from panal.policy.owner_state import Owner
from panal.policy.owner_values import (
    AttemptStarted,
    CheckMemory,
    EnginePhase,
    EngineStopped,
    HandOverAll,
    LimitSlots,
    OwnerEvent,
    OwnerInstruction,
    OwnerPolicy,
    ReportChange,
    StartEngine,
    StopEngine,
    StopTakingWork,
    Tick,
)

_NOT_SOON_AGAIN = (values.HOT, values.BATTERY, values.LIMIT)
"""After these a start waits for the cooldown, so that a machine at the limit does not go to and fro."""

Step = tuple[Owner, list[OwnerInstruction]]


def begin(policy: OwnerPolicy, now_s: float, paused_until_s: float = -inf) -> Step:
    """A machine that has just started, its engine off."""
    owner = Owner(policy, NodeState.OWNER, "", paused_until_s=paused_until_s, cooldown_s=policy.cooldown_s)
    return _reported(owner, _settled(owner, now_s, ticked=False), now_s)


def handle(owner: Owner, event: OwnerEvent) -> Step:
    """Take in an event. Returns the machine after it and what is to be done, in this order."""
    now_s = event.now_s
    after = taken_in(owner, event)
    ticked = isinstance(event, (Tick, EngineStopped))
    changed, instructions = _settled(after, now_s, ticked=ticked)
    if isinstance(event, AttemptStarted):
        instructions += _late_attempt(changed, now_s, instructions)
    changed, more = _heat(changed, now_s)
    instructions += more
    return _reported(owner, (changed, instructions), now_s)


def _late_attempt(owner: Owner, now_s: float, told: list[OwnerInstruction]) -> list[OwnerInstruction]:
    """An attempt that crossed with the end of taking work gets what is left of the grace."""
    leaving = owner.state is not NodeState.DRAINING or owner.handed_over_s < inf
    if owner.state.takes_work or not leaving or any(isinstance(one, HandOverAll) for one in told):
        return []
    left_s = owner.handed_over_s + owner.policy.grace_s - now_s
    return [HandOverAll(left_s if 0 < left_s < inf else 0.0)]


def _settled(owner: Owner, now_s: float, *, ticked: bool) -> Step:
    """Go on from the facts, as far as they lead. Ends: every repetition changes the state at most once."""
    away = away_reason(owner, now_s)
    if owner.state is NodeState.YIELDING:
        return _yielding(owner, now_s, away, ticked=ticked)
    if owner.state is NodeState.SUSPENDED:
        return _suspended(owner, now_s, away, ticked=ticked)
    if away is not None and (owner.state in IN_USE_BY_FLEET or owner.engine is not EnginePhase.OFF):
        return _yield_begins(owner, now_s, away, ticked=ticked)
    if owner.state is NodeState.DRAINING:
        return _draining(owner, now_s, ticked=ticked)
    if owner.state in (NodeState.OWNER, NodeState.COOLDOWN):
        return _with_owner(owner, now_s, away, ticked=ticked)
    return _with_fleet(owner, now_s, ticked=ticked)


def _with_owner(owner: Owner, now_s: float, away: str | None, *, ticked: bool) -> Step:
    if owner.engine is not EnginePhase.OFF:
        return _yield_begins(owner, now_s, values.GIVING_BACK, ticked=ticked)
    if wants_empty(owner):
        return replace(owner, state=NodeState.DRAINING, reason=empty_reason(owner)), []
    away = away or entry_reason(owner, now_s)
    if away is not None:
        return replace(owner, state=NodeState.OWNER, reason=away), []
    if now_s < owner.not_before_s:
        return replace(owner, state=NodeState.COOLDOWN, reason=values.COOLING), []
    return _starting(owner, now_s)


def _starting(owner: Owner, now_s: float) -> Step:
    if owner.state is not NodeState.STARTING:
        owner = replace(owner, warming_from_s=now_s)
    started = replace(owner, state=NodeState.STARTING, reason=values.STARTING, engine=EnginePhase.STARTING)
    return started, [StartEngine()]


def _with_fleet(owner: Owner, now_s: float, *, ticked: bool) -> Step:
    if wants_empty(owner):
        began = replace(
            owner,
            state=NodeState.DRAINING,
            reason=empty_reason(owner),
            leaving_from_s=now_s,
            handed_over_s=inf,
        )
        after, more = _draining(began, now_s, ticked=ticked)
        return after, [StopTakingWork(empty_reason(owner)), *more]
    if owner.engine is EnginePhase.OFF:
        return _starting(owner, now_s)
    if owner.engine is not EnginePhase.ON:
        if now_s - owner.warming_from_s < owner.policy.warm_s_max:
            return owner, []
        return _yield_begins(cold_start(owner, now_s), now_s, values.NOT_WARM, ticked=ticked)
    unload_s = owner.policy.unload_s if owner.policy.owned else 0.0
    if unload_s and not owner.attempts and now_s - owner.asked_s >= unload_s:
        return _yield_begins(replace(owner, resting=True), now_s, values.RESTING, ticked=ticked)
    state = NodeState.SERVING if owner.attempts else NodeState.AVAILABLE
    return replace(owner, state=state, reason=""), []


def _draining(owner: Owner, now_s: float, *, ticked: bool) -> Step:
    if not wants_empty(owner):
        return _undrained(owner, now_s, ticked=ticked)
    owner = replace(owner, reason=empty_reason(owner))
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
        owner = yield_counted(owner, now_s)
    elif reason in _NOT_SOON_AGAIN:
        owner = replace(owner, not_before_s=now_s + owner.policy.cooldown_s)
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
    if owner.engine is EnginePhase.ON and not owner.attempts and may_keep_engine(owner, away, now_s):
        return replace(owner, state=NodeState.SUSPENDED, suspended_from_s=now_s), []
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


def _suspended(owner: Owner, now_s: float, away: str | None, *, ticked: bool) -> Step:
    """The owner is there, the engine sleeps in memory. Called for every event, so nothing is missed."""
    if owner.engine is EnginePhase.ON and away is None and not wants_empty(owner):
        return _with_fleet(replace(owner, state=NodeState.AVAILABLE), now_s, ticked=ticked)
    kept = now_s - owner.suspended_from_s < owner.policy.keep_model_s
    if owner.engine is EnginePhase.ON and kept and may_keep_engine(owner, away, now_s):
        return owner, []
    # It is the same yield that goes on: it is counted once, and its engine goes down without a grace.
    owner = replace(
        owner, state=NodeState.YIELDING, reason=away or values.GIVING_BACK, leaving_from_s=now_s, late=False
    )
    owner = replace(owner, handed_over_s=now_s - owner.policy.grace_s)
    return _engine_down(owner, now_s, ticked=ticked)


def _engine_down(owner: Owner, now_s: float, *, ticked: bool) -> Step:
    """The next step towards an engine that is gone and has left no memory behind."""
    if owner.engine in (EnginePhase.ON, EnginePhase.STARTING):
        return replace(owner, engine=EnginePhase.STOPPING, stop_asked_s=now_s), [StopEngine(kill=False)]
    if owner.engine is EnginePhase.STOPPING and now_s - owner.stop_asked_s >= owner.policy.engine_stop_s:
        return replace(owner, stop_asked_s=now_s), [StopEngine(kill=True)]
    if owner.engine is EnginePhase.CHECKING and ticked:
        return owner, [CheckMemory()]
    return owner, []


def _heat(owner: Owner, now_s: float) -> Step:
    """Half the requests while the card slows down by heat, all of them once it has been cool."""
    policy = owner.policy
    if not owner.halved and now_s - owner.hot_from_s >= policy.halve_s:
        return replace(owner, halved=True), [LimitSlots(0.5)]
    if owner.halved and owner.hot_from_s == inf and now_s - owner.hot_until_s >= policy.cool_s:
        return replace(owner, halved=False), [LimitSlots(1.0)]
    return owner, []


def _reported(before: Owner, step: Step, now_s: float) -> Step:
    """Reports a change of state or reason, and a sensor's new problem with its words."""
    after, instructions = step
    problem = ""
    if after.sight is not None and after.sight.problem:
        same = before.sight is not None and before.sight.problem == after.sight.problem
        problem = "" if same else after.sight.problem
    elif after.policy.owned and after.reason == values.UNKNOWN and before.reason != values.UNKNOWN:
        problem = "the sensor is silent" if sensor_stale(after, now_s) else ""
    if problem or (before.state, before.reason) != (after.state, after.reason):
        instructions.append(ReportChange(problem))
    return after, instructions
