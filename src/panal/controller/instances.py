"""Which instance of a node counts: the one that was here first, while it is heard. Pure.

Two agents with one key are a restarted agent or a copied disk. A restart shows by the first instance's
silence; a copy by its going on. Until one of them shows, nothing is said of the newcomer; a copy is
refused and the first keeps working (P24).
"""

from dataclasses import dataclass
from enum import Enum

from panal.core.ids import InstanceId, NodeKey
from panal.core.nodes import INCUMBENT_S


class Verdict(Enum):
    """``UNKNOWN``: a newcomer, while nothing shows yet whether the first instance still runs."""

    SPEAKS = "speaks"
    UNKNOWN = "unknown"
    COPY = "copy"


@dataclass(slots=True)
class Incumbent:
    """The instance that counts, when it was last heard, and who came while it was there."""

    instance: InstanceId
    heard_s: float
    newcomer: InstanceId | None = None
    outlived_newcomer: bool = False
    """Whether the incumbent was heard after the newcomer first was."""


class Instances:
    """Judges heartbeats. Bounded by the number of known nodes, since others are not asked about."""

    def __init__(self) -> None:
        self._incumbents: dict[NodeKey, Incumbent] = {}

    def judge(self, key: NodeKey, instance: InstanceId, now_s: float) -> Verdict:
        """Whether this instance may speak for the node; a new one takes over after a silence."""
        incumbent = self._incumbents.get(key)
        if incumbent is None or now_s - incumbent.heard_s > INCUMBENT_S:
            incumbent = self._incumbents[key] = Incumbent(instance, now_s)
        if incumbent.instance == instance:
            incumbent.heard_s = now_s
            incumbent.outlived_newcomer = incumbent.newcomer is not None
            return Verdict.SPEAKS
        if incumbent.newcomer != instance:
            incumbent.newcomer, incumbent.outlived_newcomer = instance, False
        return Verdict.COPY if incumbent.outlived_newcomer else Verdict.UNKNOWN

    def current(self, key: NodeKey) -> InstanceId | None:
        incumbent = self._incumbents.get(key)
        return incumbent.instance if incumbent is not None else None

    def heard(self, key: NodeKey, now_s: float) -> bool:
        """Whether the node was heard lately."""
        incumbent = self._incumbents.get(key)
        return incumbent is not None and now_s - incumbent.heard_s <= INCUMBENT_S

    def keep_only(self, keys: set[NodeKey]) -> None:
        """Forget nodes that are gone."""
        for key in self._incumbents.keys() - keys:
            del self._incumbents[key]
