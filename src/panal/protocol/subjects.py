"""Every subject of the bus, and nothing else makes one (DESIGN section 4).

``KEY`` is a node's public key, ``GW`` a gateway's id: both are checked before they enter a subject.
"""

import re

from panal.core.errors import ProtocolError
from panal.core.ids import GatewayId, NodeKey

_KEY = re.compile(r"U[A-Z2-7]{55}")
_TOKEN = re.compile(r"[a-z0-9_]{1,64}")

RUN, PART, ACKNOWLEDGE, CANCEL, INSTRUCT = "run", "part", "ack", "cancel", "instruct"
PROBE = "probe"
"""To a node that may be gone. Nodes ignore it: what counts is the server's word that nobody hears it."""
PRESENT = "present"

ALL_HEARTBEATS = "panal.up.*.heartbeat"
ALL_REPORTS = "panal.up.*.report"
FLEET_CHANGED = "panal.fleet.changed"
"""From the controller to gateways: something about nodes or keys changed in the store; read it again."""


def down(key: NodeKey, verb: str) -> str:
    """Gateway or controller to that node; verb is one of the constants above."""
    return f"panal.down.{checked_key(key)}.{verb}"


def down_all(key: NodeKey) -> str:
    """What a node subscribes to."""
    return f"panal.down.{checked_key(key)}.>"


def frames(key: NodeKey, gateway: GatewayId) -> str:
    return f"panal.up.{checked_key(key)}.frames.{checked_token(gateway)}"


def frames_for(gateway: GatewayId) -> str:
    """What a gateway subscribes to: frames of all nodes for it alone."""
    return f"panal.up.*.frames.{checked_token(gateway)}"


def absent(key: NodeKey, gateway: GatewayId) -> str:
    """Where the server tells that gateway that nobody hears what it sent to that node."""
    return f"panal.absent.{checked_token(gateway)}.{checked_key(key)}"


def absent_for(gateway: GatewayId) -> str:
    return f"panal.absent.{checked_token(gateway)}.*"


def heartbeat(key: NodeKey) -> str:
    return f"panal.up.{checked_key(key)}.heartbeat"


def report(key: NodeKey) -> str:
    return f"panal.up.{checked_key(key)}.report"


def key_of(subject: str) -> NodeKey:
    """The node key inside an up or down subject. Raises ProtocolError."""
    parts = subject.split(".", 3)
    if len(parts) < 4:
        raise ProtocolError("a subject without a node key")
    return NodeKey(parts[2])


def absent_key_of(subject: str) -> NodeKey:
    """The node key at the end of an ``absent`` subject. Raises ProtocolError."""
    return checked_key(NodeKey(subject.rpartition(".")[2]))


def checked_key(key: NodeKey) -> NodeKey:
    if _KEY.fullmatch(key) is None:
        raise ProtocolError("that is not a node's public key")
    return key


def checked_token(token: GatewayId) -> GatewayId:
    if _TOKEN.fullmatch(token) is None:
        raise ProtocolError("that is not a gateway's id")
    return token
