"""Words about nodes: their class, their state, their data class."""

from enum import IntEnum, StrEnum

INCUMBENT_S = 3.0
"""A second instance of a node counts only after the first was silent for so long (copied identity)."""

KNOWN_MODELS_MAX = 10_000
"""Names of models that are remembered: no node may fill the memory or the store with new ones."""


class NodeClass(StrEnum):
    """Whose machine it is. It comes from the join token or an operator, never from the node."""

    DEDICATED = "dedicated"
    WORKSTATION = "workstation"
    DESKTOP = "desktop"
    LAPTOP = "laptop"

    @property
    def owned(self) -> bool:
        """Whether a person's use of the machine comes before panal's."""
        return self is not NodeClass.DEDICATED


class NodeState(StrEnum):
    """What a node says of itself. New work goes to AVAILABLE and SERVING only.

    SUSPENDED: its owner is there and the idle engine stays in memory for a while, as the owner allowed.
    COOLDOWN: nothing stands against work but a waiting time.
    """

    STARTING = "starting"
    OWNER = "owner"
    AVAILABLE = "available"
    SERVING = "serving"
    YIELDING = "yielding"
    DRAINING = "draining"
    DEGRADED = "degraded"
    SUSPENDED = "suspended"
    COOLDOWN = "cooldown"

    @property
    def takes_work(self) -> bool:
        return self in (NodeState.AVAILABLE, NodeState.SERVING)


class Membership(StrEnum):
    """What the operators decided about a node. Kept in the store, survives restarts."""

    PENDING = "pending"
    ACTIVE = "active"
    CORDONED = "cordoned"
    DRAINING = "draining"
    REVOKED = "revoked"


class DataClass(IntEnum):
    """How sensitive data is. A node may see data up to its own class; unknown text is an error."""

    PUBLIC = 0
    INTERNAL = 1
    CONFIDENTIAL = 2
    RESTRICTED = 3

    @classmethod
    def parse(cls, text: str) -> "DataClass":
        """Raises ValueError naming the known classes."""
        try:
            return cls[text.strip().upper()]
        except KeyError:
            known = ", ".join(member.name.lower() for member in cls)
            raise ValueError(f"unknown data class {text!r}: use one of {known}") from None

    @property
    def label(self) -> str:
        return self.name.lower()
