"""The fleet as this gateway sees it now, for people: who is there, in what state, serving what.

A user's key that is restricted to some names sees no other model, and those by the names that it may use.
"""

from collections.abc import Mapping

import msgspec
from msgspec import structs

from panal.core.names import name_key
from panal.core.principals import Principal, Role
from panal.dispatch.fleet import NodeFacts, NodeSeen
from panal.gateway.gateway import Gateway
from panal.protocol.messages import GpuReport
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
    gpu: str
    load_s: float
    memory_bytes: int
    prefill_tokens_per_s: float
    decode_s_per_token: float


class GpuLive(msgspec.Struct):
    """null: its driver does not tell it, or the node keeps it to itself while its owner is there."""

    uuid: str
    name: str
    driver: str
    lost: bool
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    busy_share: float | None
    temperature_c: float | None
    power_w: float | None
    energy_j: float | None
    throttle: list[str] | None


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
    gpus: list[GpuLive]


class FleetView(msgspec.Struct):
    nodes: list[NodeLive]
    models: list[str]


def fleet_view(gateway: Gateway, caller: Principal) -> FleetView:
    now_s = gateway.clock.monotonic_seconds()
    nodes = sorted(
        (_node(facts, seen, now_s) for facts, seen in gateway.fleet.nodes()), key=lambda node: node.name
    )
    if caller.role is not Role.USER or not caller.models:
        return FleetView(nodes, gateway.fleet.models())
    names = gateway.names.by_model(caller)
    for node in nodes:
        node.replicas = _allowed(node.replicas, names)
    return FleetView(nodes, sorted(names.values()))


def _allowed(replicas: list[ReplicaLive], names: Mapping[str, str]) -> list[ReplicaLive]:
    """Those of models that have a name for the caller, under that name; a note may tell of others."""
    found = [(replica, names.get(name_key(replica.model))) for replica in replicas]
    return [structs.replace(replica, model=name, note="") for replica, name in found if name is not None]


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
                report.gpu,
                report.load_s,
                report.memory_bytes,
                report.prefill_tokens_per_s,
                report.decode_s_per_token,
            )
            for report in (seen.heartbeat.replicas if seen is not None else [])
        ],
        gpus=[_gpu(report) for report in (seen.heartbeat.gpus if seen is not None else [])],
    )


def _gpu(report: GpuReport) -> GpuLive:
    return GpuLive(**{name: getattr(report, name) for name in GpuLive.__struct_fields__})


def _liveness(silent_s: float | None) -> str:
    if silent_s is None:
        return "never"
    if silent_s <= STALE_AFTER_S:
        return "live"
    return "stale" if silent_s <= LOST_AFTER_S else "lost"
