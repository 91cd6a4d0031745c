"""Typed, time-ordered ids: ``<kind>_<26 characters>``.

The 26 characters are 128 bits in the order-preserving base 32 of RFC 4648 section 7: 48 bits of
milliseconds since 1970 UTC, then 80 random bits. Ids of one kind therefore sort by time of birth.
"""

import re
from collections.abc import Callable
from typing import NewType

from panal.core.clock import Clock

TenantId = NewType("TenantId", str)
ProjectId = NewType("ProjectId", str)
PrincipalId = NewType("PrincipalId", str)
ApiKeyId = NewType("ApiKeyId", str)
JoinTokenId = NewType("JoinTokenId", str)
NodeId = NewType("NodeId", str)
ReplicaId = NewType("ReplicaId", str)
RequestId = NewType("RequestId", str)
GatewayId = NewType("GatewayId", str)
InstanceId = NewType("InstanceId", str)
"""One run of an agent program: a restarted agent is the same node with another instance."""
NodeKey = NewType("NodeKey", str)
"""A node's current public NATS key (``U`` and 55 characters). It rotates; the NodeId stays."""

DEFAULT_TENANT = TenantId("tnt_default")
DEFAULT_PROJECT = ProjectId("prj_default")

_ID = re.compile(r"[a-z]{3,8}_[0-9a-z]{1,32}")


_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [first + second for first in _DIGITS for second in _DIGITS]
"""Two characters for each 10 bits: base64.b32hexencode takes four times as long."""
_SHIFTS = range(120, -1, -10)


class IdSource:
    """Makes ids. ``entropy(n)`` returns n random bytes (``os.urandom`` in programs)."""

    def __init__(self, clock: Clock, entropy: Callable[[int], bytes]) -> None:
        self._clock = clock
        self._entropy = entropy

    def suffix(self) -> str:
        """The 26 characters alone."""
        milliseconds = int(self._clock.utc_seconds() * 1000)
        bits = (milliseconds << 80 | int.from_bytes(self._entropy(10), "big")) << 2
        return "".join([_PAIRS[bits >> shift & 1023] for shift in _SHIFTS])

    def request(self) -> RequestId:
        return self.request_with(self.suffix())

    def request_with(self, suffix: str) -> RequestId:
        """A request's id that shares its suffix with the response's id."""
        return RequestId("req_" + suffix)

    def node(self) -> NodeId:
        return NodeId("node_" + self.suffix())

    def replica(self) -> ReplicaId:
        return ReplicaId("rep_" + self.suffix())

    def instance(self) -> InstanceId:
        return InstanceId("ins_" + self.suffix())

    def gateway(self) -> GatewayId:
        return GatewayId("gw_" + self.suffix())

    def principal(self) -> PrincipalId:
        return PrincipalId("prn_" + self.suffix())

    def api_key(self) -> ApiKeyId:
        return ApiKeyId("key_" + self.suffix())

    def join_token(self) -> JoinTokenId:
        return JoinTokenId("jtk_" + self.suffix())

    def other(self, kind: str) -> str:
        """An id of a kind without a type of its own, such as an audit event (``evt``)."""
        return f"{kind}_{self.suffix()}"


def is_id(text: str) -> bool:
    """Whether ``text`` has the form of an id, so that it is safe in subjects, paths and logs."""
    return _ID.fullmatch(text) is not None
