"""Whether requests can be answered, and what is missing meanwhile. Only codes and counts: no key is asked.

``ready``: all is there. ``degraded``: requests are answered, but something that should be there is not.
Not ready (503): nothing can be answered now.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from panal.core.errors import BusError, ModelResting, PanalError, StoreError
from panal.core.nodes import Membership, NodeState
from panal.dispatch.fleet import Fleet, NodeFacts, NodeSeen
from panal.policy import owner_values as words
from panal.scheduling.replicas import STALE_AFTER_S
from panal.telemetry.metrics import NODE_STATES, OTHER, REST_REASONS

REASON_OF = {
    words.IN_USE: "in_use",
    words.PAUSED: "paused",
    words.UNKNOWN: "unknown",
    words.BATTERY: "battery",
    words.SLEEP: "sleep",
    words.HOT: "hot",
    words.HOURS: "hours",
    words.DISK: "disk",
    words.LIMIT: "limit",
    words.OFFLINE: "offline",
    words.RESTING: "unused",
    words.STARTING: "starting",
    words.COOLING: "starting",
    words.DRAINING: "draining",
}
"""What a node says in words, as one of REST_REASONS; everything else is 'other'."""


class Reason(msgspec.Struct, frozen=True):
    """One thing that is missing; ``code`` is stable, ``count`` says of how many."""

    code: str
    count: int
    message: str


class Readiness(msgspec.Struct, frozen=True):
    """``status``: ready | degraded. ``utc_s`` is the gateway's clock."""

    status: str
    utc_s: float
    reasons: list[Reason]


def node_states(fleet: Fleet, now_s: float) -> Mapping[str, int]:
    """How many nodes of the installation are in each of NODE_STATES."""
    counted = Counter(dict.fromkeys(NODE_STATES, 0))
    for facts, seen in fleet.nodes():
        state = _state_of(facts, seen, now_s)
        if state:
            counted[state] += 1
    return counted


def rest_reasons(fleet: Fleet, now_s: float) -> Mapping[str, int]:
    """Why the resting ones of ``node_states`` rest, by REST_REASONS; 'unknown': idle state unknown (P29)."""
    counted = Counter(dict.fromkeys(REST_REASONS, 0))
    for facts, seen in fleet.nodes():
        if seen is not None and _state_of(facts, seen, now_s) == "resting":
            counted[REASON_OF.get(seen.heartbeat.reason, OTHER)] += 1
    return counted


def nodes_expected(fleet: Fleet) -> int:
    """Nodes that should be there at any time: active ones without an owner who may switch them off."""
    return sum(1 for facts, _seen in fleet.nodes() if _expected(facts))


def refusal(fleet: Fleet, *, bus_there: bool, store_there: bool, keys_known: bool) -> PanalError | None:
    """Why nothing can be answered now, naming every part that is away; None when something can be."""
    missing: list[tuple[type[PanalError], str]] = []
    if not store_there and not keys_known:
        missing.append((StoreError, "the store does not answer"))
    if not bus_there:
        missing.append((BusError, "the bus is away"))
    if not fleet.any_ready():
        missing.append((ModelResting, "no node takes work"))
    if not missing:
        return None
    words = ", ".join(text for _kind, text in missing)
    return missing[0][0](f"Not ready: {words}.", retry_after_s=1)


def readiness(fleet: Fleet, *, now_s: float, utc_s: float, store_there: bool) -> Readiness:
    """What is said while requests are answered."""
    states = node_states(fleet, now_s)
    reasons = []
    if not store_there:
        reasons.append(Reason("store_unavailable", 1, "The store does not answer; known keys are served."))
    if states["missing"]:
        expected = nodes_expected(fleet)
        words = f"Of {expected} nodes that should be there {states['missing']} are not heard of."
        reasons.append(Reason("nodes_missing", states["missing"], words))
    if states["faulty"]:
        words = f"On {states['faulty']} nodes the engine does not work."
        reasons.append(Reason("nodes_faulty", states["faulty"], words))
    return Readiness("degraded" if reasons else "ready", utc_s, reasons)


def _expected(facts: NodeFacts) -> bool:
    return facts.membership is Membership.ACTIVE and not facts.node_class.owned


def _state_of(facts: NodeFacts, seen: NodeSeen | None, now_s: float) -> str:
    if facts.membership in (Membership.CORDONED, Membership.DRAINING):
        return "cordoned"
    if facts.membership is not Membership.ACTIVE:
        return ""
    if seen is None or now_s - seen.heard_s > STALE_AFTER_S:
        return "missing" if _expected(facts) else "away"
    if seen.heartbeat.state == NodeState.DEGRADED.value:
        return "faulty"
    if seen.heartbeat.state not in (NodeState.AVAILABLE.value, NodeState.SERVING.value):
        return "resting"
    return "ready" if all(replica.healthy for replica in seen.heartbeat.replicas) else "faulty"
