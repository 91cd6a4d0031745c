"""Who may be woken, and which live nodes are asked to do it."""

import logging
from collections.abc import Callable, Iterable, Mapping
from math import inf

from panal.bus.seam import ControllerBus
from panal.controller.instances import Instances
from panal.core.clock import Clock
from panal.core.errors import BusError
from panal.core.ids import IdSource, NodeId
from panal.core.nodes import Membership
from panal.core.records import NodeRecord
from panal.policy.waking import plain_macs
from panal.protocol.messages import Instruction
from panal.telemetry.logs import fields

HELPERS_MAX = 3
"""Some machines of a site stand on another network than the sleeper: more than one is asked."""

CHANGE_EACH_S = 30.0
"""A node changes its mind no more often: each change makes every gateway read the nodes again."""

log = logging.getLogger("panal.controller")


def neighbours(
    sleeper: NodeRecord, nodes: Iterable[NodeRecord], heard: Callable[[NodeRecord], bool]
) -> list[NodeRecord]:
    """Live nodes of the sleeper's tenant and site, at most HELPERS_MAX: machines without an owner first."""
    found = [
        node
        for node in nodes
        if (node.tenant_id, node.site) == (sleeper.tenant_id, sleeper.site)
        and node.node_id != sleeper.node_id
        and node.membership not in (Membership.PENDING, Membership.REVOKED)
        and heard(node)
    ]
    return sorted(found, key=lambda node: (node.node_class.owned, node.node_id))[:HELPERS_MAX]


class Wakes:
    """Notes what nodes say of it until the store has it, and asks their neighbours."""

    def __init__(self, bus: ControllerBus, instances: Instances, clock: Clock, ids: IdSource) -> None:
        self._bus = bus
        self._instances = instances
        self._clock = clock
        self._ids = ids
        self.due: dict[NodeId, tuple[str, ...]] = {}
        """Addresses that are not written yet; none: the node must not be woken. Bounded by the nodes."""
        self._changed_s: dict[NodeId, float] = {}

    def told(self, node: NodeRecord, macs: Iterable[object]) -> None:
        """A node reported by which addresses it may be woken."""
        found, now_s = plain_macs(macs), self._clock.monotonic_seconds()
        if found == node.wake_macs:
            self.due.pop(node.node_id, None)
        elif now_s - self._changed_s.get(node.node_id, -inf) >= CHANGE_EACH_S:
            self.due[node.node_id] = found
            self._changed_s[node.node_id] = now_s

    def written(self, wakes: Mapping[NodeId, tuple[str, ...]]) -> None:
        """The store has these now."""
        for node_id, macs in wakes.items():
            if self.due.get(node_id) == macs:
                del self.due[node_id]

    def forget(self) -> None:
        """Another term: nodes say it again."""
        self.due.clear()
        self._changed_s.clear()

    def ask(self, sleeper: NodeRecord, nodes: Iterable[NodeRecord]) -> tuple[str, ...] | None:
        """Ask live nodes of its site to wake it. Returns their names, none when none is there; None: it is
        awake. Any process may: an instruction without a term counts whoever leads."""
        now_s = self._clock.monotonic_seconds()
        if self._instances.heard(sleeper.key, now_s):
            return None
        asked = []
        for node in neighbours(sleeper, nodes, lambda each: self._instances.heard(each.key, now_s)):
            instruction = Instruction(
                id=self._ids.other("ist"),
                verb="wake",
                instance=self._instances.current(node.key) or "",
                macs=list(sleeper.wake_macs),
            )
            try:
                self._bus.instruct(node.key, instruction)
            except BusError as error:
                log.warning("a node could not be told: %s", error.message, extra=fields(action="wake_failed"))
                continue
            asked.append(node.name)
        return tuple(asked)
