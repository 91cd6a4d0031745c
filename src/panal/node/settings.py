"""What an agent must know before it starts; made by the program that wires it from files and options."""

from dataclasses import dataclass

from panal.core.ids import NodeId


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """``credential_s``: what is left of the bus credential's life at the start; a new one is asked for when
    half of it is over.

    ``grace_s``: how long attempts may go on after a stop was asked for. ``measure``: time the engine
    with a small request at each start.
    """

    node: NodeId
    agent_version: str
    credential_s: float = 3600.0
    grace_s: float = 2.0
    waiting_max: int = 4
    measure: bool = True
    wake_macs: tuple[str, ...] = ()
    """Hardware addresses by which it may be woken; empty unless it opted in."""
