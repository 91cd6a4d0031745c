"""The gateway's view of the fleet: operators' facts from the store, joined with heartbeats.

A heartbeat counts only if its key belongs to a known, active node: everything else is ignored until
the store says otherwise. Records are replaced singly; nothing here is recomputed for all nodes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from panal.core.clock import Clock
from panal.core.ids import InstanceId, NodeId, NodeKey, ReplicaId
from panal.core.names import name_key
from panal.core.nodes import INCUMBENT_S, KNOWN_MODELS_MAX, DataClass, Membership, NodeClass, NodeState
from panal.dispatch.bus_sight import BusSight, Sight
from panal.protocol.messages import Heartbeat, ReplicaReport
from panal.scheduling.replicas import LOST_AFTER_S, STALE_AFTER_S, OwnLoad, ReplicaView
from panal.scheduling.routing import Candidate

WORKING_STATES = frozenset(state.value for state in NodeState if state.takes_work)
"""A state that this version does not know takes no work."""

HAZARD_PER_H_MAX = 10.0
"""Whatever a node says of its owner, it weighs no more."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What operators decided about a node. It never comes from the node."""

    node_id: NodeId
    key: NodeKey
    name: str
    node_class: NodeClass
    site: str
    country: str
    data_class: DataClass
    membership: Membership


@dataclass(slots=True)
class NodeSeen:
    """A node's last heartbeat."""

    heartbeat: Heartbeat
    heard_s: float
    instance: InstanceId
    replicas: tuple[ReplicaId, ...] = ()


class Fleet:
    """Replicas by model, and who is silent. One per gateway process; used from its event loop only.

    Models are told apart by the rule of core.names: nodes that write one name in two ways serve one model.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.sight = BusSight(clock)
        """What our own sight of these nodes is worth; who routes or judges by silence asks it first."""
        self.on_change: Callable[[], None] = _nobody_waits
        """Called after each change of what could take work."""
        self._facts: dict[NodeKey, NodeFacts] = {}
        self._seen: dict[NodeKey, NodeSeen] = {}
        self._by_model: dict[str, dict[ReplicaId, Candidate]] = {}
        self._views: dict[ReplicaId, ReplicaView] = {}
        self._own: dict[ReplicaId, OwnLoad] = {}
        self._known_models: dict[str, str] = {}

    # --- what is known --------------------------------------------------------------------------

    def candidates(self, model: str) -> list[Candidate]:
        """All replicas of a model, fit or not."""
        return list(self._by_model.get(name_key(model), {}).values())

    def knows_model(self, model: str) -> bool:
        """Whether the name was ever served here, also if its nodes rest now."""
        return name_key(model) in self._known_models

    def model_of(self, key: str) -> str | None:
        """The model whose name has this key (``core.names.name_key``), as it was first written."""
        return self._known_models.get(key)

    def models(self) -> list[str]:
        """As they were first written."""
        return sorted(self._known_models.values())

    def nodes(self) -> list[tuple[NodeFacts, NodeSeen | None]]:
        return [(facts, self._seen.get(key)) for key, facts in self._facts.items()]

    def facts(self, key: NodeKey) -> NodeFacts | None:
        return self._facts.get(key)

    def view(self, replica_id: ReplicaId) -> ReplicaView | None:
        """The replica's newest record, or None once its node does not report it any more."""
        return self._views.get(replica_id)

    def any_ready(self) -> bool:
        """Whether some replica takes work now."""
        return self.sight.now is Sight.CLEAR and any(
            view.takes_work and view.healthy and self.fresh(view.key) for view in self._views.values()
        )

    def starting(self, key: NodeKey) -> bool:
        """Whether the node may serve and is loading its model right now."""
        facts, seen = self._facts.get(key), self._seen.get(key)
        if facts is None or seen is None or facts.membership is not Membership.ACTIVE:
            return False
        return seen.heartbeat.state == NodeState.STARTING.value and self.fresh(key)

    def silent_s(self, key: NodeKey) -> float:
        """Seconds since the node was last heard; infinite for an unknown one."""
        seen = self._seen.get(key)
        return self._clock.monotonic_seconds() - seen.heard_s if seen else float("inf")

    def fresh(self, key: NodeKey) -> bool:
        return self.silent_s(key) <= STALE_AFTER_S

    # --- what arrives ---------------------------------------------------------------------------

    def set_models(self, models: Iterable[str]) -> None:
        """The names that were ever served here; of equal ones the first is shown."""
        known: dict[str, str] = {}
        for model in models:
            known.setdefault(name_key(model), model)
        for key in self._by_model.keys() - known.keys():
            if key in self._known_models:
                known[key] = self._known_models[key]
        self._known_models = known

    def set_facts(self, facts: Iterable[NodeFacts]) -> None:
        """Replace what the store says. Nodes that are gone from it take nothing more at once."""
        self._facts = {fact.key: fact for fact in facts}
        for key in [key for key in self._seen if key not in self._facts]:
            self._forget(key)
        for key, seen in self._seen.items():
            self._rebuild(key, seen)
        self.on_change()

    def heard(self, key: NodeKey, heartbeat: Heartbeat) -> None:
        """Take a heartbeat in. Unknown keys and second instances are ignored."""
        if key not in self._facts or heartbeat.node != self._facts[key].node_id:
            return
        now_s = self._clock.monotonic_seconds()
        seen = self._seen.get(key)
        if seen is not None and seen.instance != heartbeat.instance and now_s - seen.heard_s < INCUMBENT_S:
            return
        if seen is None or seen.instance != heartbeat.instance:
            self._forget(key)
            seen = self._seen[key] = NodeSeen(heartbeat, now_s, InstanceId(heartbeat.instance))
        seen.heartbeat, seen.heard_s = heartbeat, now_s
        self._rebuild(key, seen)
        self.on_change()

    def absent(self, key: NodeKey) -> None:
        """The node is not on the bus: count it as silent, and let a new instance of it in at once."""
        seen = self._seen.get(key)
        if seen is not None:
            seen.heard_s = min(seen.heard_s, self._clock.monotonic_seconds() - INCUMBENT_S)
            for replica_id in seen.replicas:
                self._put(replace(self._views[replica_id], reported_s=seen.heard_s))

    def forget_lost(self) -> None:
        """Drop the records of nodes that were silent for LOST_AFTER_S. Call it each second or so."""
        for key in [key for key in self._seen if self.silent_s(key) > LOST_AFTER_S]:
            self._forget(key)

    def hear_anew(self) -> None:
        """What was heard so far may be old: every node counts again from its next heartbeat on."""
        before_s = self._clock.monotonic_seconds() - STALE_AFTER_S - 0.001
        for key, seen in self._seen.items():
            seen.heard_s = min(seen.heard_s, before_s)
            self._rebuild(key, seen)
        self.sight.trust()

    # --- inside ---------------------------------------------------------------------------------

    def _rebuild(self, key: NodeKey, seen: NodeSeen) -> None:
        facts, heartbeat = self._facts[key], seen.heartbeat
        takes_work = facts.membership is Membership.ACTIVE and heartbeat.state in WORKING_STATES
        ids = tuple(_fleet_wide(facts, report) for report in heartbeat.replicas)
        for gone in set(seen.replicas) - set(ids):
            self._drop(gone)
        seen.replicas = ids
        hazard_per_h = min(max(heartbeat.hazards_per_h, default=0.0), HAZARD_PER_H_MAX)
        for report in heartbeat.replicas:
            self._put(_view(facts, seen, report, takes_work, hazard_per_h))
            own = self._own[_fleet_wide(facts, report)]
            own.sent_since_report = own.prefill_tokens_since_report = 0

    def _put(self, view: ReplicaView) -> None:
        old = self._views.get(view.replica_id)
        if old is not None and old.model != view.model:
            self._leave_model(old)
        own = self._own.setdefault(view.replica_id, OwnLoad())
        self._views[view.replica_id] = view
        key = name_key(view.model)
        self._by_model.setdefault(key, {})[view.replica_id] = (view, own)
        if key not in self._known_models and len(self._known_models) < KNOWN_MODELS_MAX:
            self._known_models[key] = view.model

    def _drop(self, replica_id: ReplicaId) -> None:
        view = self._views.pop(replica_id, None)
        if view is None:
            return
        self._leave_model(view)
        own = self._own.get(replica_id)
        if own is not None and own.running == 0:
            del self._own[replica_id]

    def _leave_model(self, view: ReplicaView) -> None:
        key = name_key(view.model)
        of_model = self._by_model[key]
        of_model.pop(view.replica_id, None)
        if not of_model:
            del self._by_model[key]

    def _forget(self, key: NodeKey) -> None:
        seen = self._seen.pop(key, None)
        for replica_id in seen.replicas if seen else ():
            self._drop(replica_id)


def _view(
    facts: NodeFacts, seen: NodeSeen, report: ReplicaReport, takes_work: bool, hazard_per_h: float
) -> ReplicaView:
    return ReplicaView(
        key=facts.key,
        node_id=facts.node_id,
        node_name=facts.name,
        instance=seen.instance,
        replica_id=_fleet_wide(facts, report),
        reported_id=report.replica,
        model=report.model,
        twin=report.twin,
        resume=report.resume,
        routes=frozenset(report.routes),
        context_tokens=report.context_tokens,
        slots=report.slots,
        node_class=facts.node_class,
        country=facts.country,
        data_class=facts.data_class,
        takes_work=takes_work,
        healthy=report.healthy,
        reported_s=seen.heard_s,
        running=report.running,
        waiting=report.waiting,
        pending_prefill_tokens=report.pending_prefill_tokens,
        prefill_tokens_per_s=report.prefill_tokens_per_s,
        decode_s_per_token=report.decode_s_per_token,
        continues_messages=report.continues_messages,
        hazard_per_h=hazard_per_h,
    )


def _nobody_waits() -> None:
    """Until somebody wants to hear of changes."""


def _fleet_wide(facts: NodeFacts, report: ReplicaReport) -> ReplicaId:
    """A node names its replicas itself, so the name counts only together with the node's own id."""
    return ReplicaId(f"{facts.node_id}/{report.replica}")
