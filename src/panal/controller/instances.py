"""Which instance of a node counts: the one that was here first, while it is heard. Pure.

Two agents with one key are a restarted agent or a copied disk. A restart shows by the first instance's
silence; a copy by its going on. The copy is refused and the first keeps working (P24).
"""

from dataclasses import dataclass

from panal.core.ids import InstanceId, NodeKey

SILENT_AFTER_S = 3.0


@dataclass(slots=True)
class Incumbent:
    """The instance that counts, and when it was last heard."""

    instance: InstanceId
    heard_s: float


class Instances:
    """Judges heartbeats. Bounded by the number of known nodes, since others are not asked about."""

    def __init__(self) -> None:
        self._incumbents: dict[NodeKey, Incumbent] = {}

    def judge(self, key: NodeKey, instance: InstanceId, now_s: float) -> bool:
        """Whether this instance may speak for the node; a new one takes over after a silence."""
        incumbent = self._incumbents.get(key)
        if incumbent is None or now_s - incumbent.heard_s > SILENT_AFTER_S:
            incumbent = self._incumbents[key] = Incumbent(instance, now_s)
        if incumbent.instance != instance:
            return False
        incumbent.heard_s = now_s
        return True

    def current(self, key: NodeKey) -> InstanceId | None:
        incumbent = self._incumbents.get(key)
        return incumbent.instance if incumbent is not None else None

    def keep_only(self, keys: set[NodeKey]) -> None:
        """Forget nodes that are gone."""
        for key in self._incumbents.keys() - keys:
            del self._incumbents[key]
