"""The fleet as this gateway sees it now, for people: who is there, in what state, serving what."""

import msgspec

from panal.dispatch.fleet import NodeFacts, NodeSeen
from panal.gateway.gateway import Gateway
from panal.scheduling.replicas import LOST_AFTER_S, STALE_AFTER_S


class ReplicaLive(msgspec.Struct):
    model: str
    engine: str
    healthy: bool
    running: int
    waiting: int
    slots: int
    resume: str
    note: str


class NodeLive(msgspec.Struct):
    """``liveness``: live | stale | lost | never; ``state`` and ``reason`` are the node's own coarse words."""

    id: str
    name: str
    node_class: str
    membership: str
    liveness: str
    state: str
    reason: str
    silent_s: float | None
    replicas: list[ReplicaLive]


class FleetView(msgspec.Struct):
    nodes: list[NodeLive]
    models: list[str]


def fleet_view(gateway: Gateway) -> FleetView:
    now_s = gateway.clock.monotonic_seconds()
    nodes = [_node(facts, seen, now_s) for facts, seen in gateway.fleet.nodes()]
    return FleetView(sorted(nodes, key=lambda node: node.name), gateway.fleet.models())


def _node(facts: NodeFacts, seen: NodeSeen | None, now_s: float) -> NodeLive:
    silent_s = None if seen is None else now_s - seen.heard_s
    return NodeLive(
        id=facts.node_id,
        name=facts.name,
        node_class=facts.node_class.value,
        membership=facts.membership.value,
        liveness=_liveness(silent_s),
        state=seen.heartbeat.state if seen is not None else "",
        reason=seen.heartbeat.reason if seen is not None else "",
        silent_s=None if silent_s is None else round(silent_s, 2),
        replicas=[
            ReplicaLive(
                report.model,
                report.engine,
                report.healthy,
                report.running,
                report.waiting,
                report.slots,
                report.resume,
                report.note,
            )
            for report in (seen.heartbeat.replicas if seen is not None else [])
        ],
    )


def _liveness(silent_s: float | None) -> str:
    if silent_s is None:
        return "never"
    if silent_s <= STALE_AFTER_S:
        return "live"
    return "stale" if silent_s <= LOST_AFTER_S else "lost"
