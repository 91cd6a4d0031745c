"""What routing knows of a replica, and what a request needs of one. Values only."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from panal.core.ids import InstanceId, NodeId, NodeKey, ReplicaId
from panal.core.nodes import DataClass, NodeClass
from panal.core.requests import Route

STALE_AFTER_S = 1.5
"""A node whose last heartbeat is older gets no new work."""

LOST_AFTER_S = 15.0
"""A node that was silent for so long is shown as lost."""

INHIBITED_S = 5.0
"""How long a replica is tried last after an attempt failed on it; its next report alone proves little."""

PREFILL_TOKENS_PER_S_DEFAULT = 200.0
DECODE_S_PER_TOKEN_DEFAULT = 0.05


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica as its node's last heartbeat and the operators describe it.

    ``reported_s`` is the gateway's monotonic time at which the heartbeat arrived. Speeds are the
    node's own measurements; 0 means unknown and is replaced by a slow default, never by a good one.
    """

    key: NodeKey
    node_id: NodeId
    node_name: str
    instance: InstanceId
    replica_id: ReplicaId
    reported_id: str
    model: str
    twin: str
    resume: str
    routes: frozenset[str]
    context_tokens: int
    slots: int
    node_class: NodeClass
    country: str
    data_class: DataClass
    takes_work: bool
    healthy: bool
    reported_s: float
    running: int = 0
    waiting: int = 0
    pending_prefill_tokens: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_s_per_token: float = 0.0
    hazard_per_h: float = 0.0
    """How often the owner may come, an hour, as the node has learnt it; 0 where nobody owns it."""
    continues_messages: bool = False
    """Whether the engine continues an open assistant message, so that tool calls are still read."""

    def can_continue(self, *, tools: bool) -> bool:
        """Whether an answer that broke elsewhere can go on here; with ``tools`` only in an open message."""
        return bool(self.twin) and self.resume != "none" and (not tools or self.continues_messages)


@dataclass(slots=True)
class OwnLoad:
    """What this gateway has running on a replica now, and what it sent since the last report."""

    running: int = 0
    sent_since_report: int = 0
    prefill_tokens_since_report: int = 0
    inhibited_until_s: float = 0.0
    """Until then this gateway tries others first, since an attempt failed here just now."""


class Need(msgspec.Struct, frozen=True):
    """What a request needs of a replica. ``twin`` is set when an answer must be continued.

    ``allowed`` is the policy's word on data class and residency, for one node. ``called`` is the name
    by which the client asked for the model, for what it is told.
    """

    model: str
    route: Route
    prompt_tokens: int
    output_tokens: int
    allowed: Callable[[ReplicaView], bool]
    resumable: bool = True
    tools: bool = False
    """Whether the answer may call tools."""
    twin: str | None = None
    excluded: frozenset[ReplicaId] = frozenset()
    called: str = ""
