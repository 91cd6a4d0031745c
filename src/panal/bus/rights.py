"""What each role may do on the bus: the templates that the server itself enforces (DESIGN section 4).

``{{subject()}}`` is the public key of the connected user and ``{{name()}}`` the name in its credential:
the server fills them in, so that a node reaches its own subjects only, whatever its program does.
"""

from enum import StrEnum
from typing import Any

from panal.protocol import subjects

PAYLOAD_BYTES_MAX = 1024 * 1024

_OWN_KEY = "{{subject()}}"
_OWN_NAME = "{{name()}}"


class BusRole(StrEnum):
    """Who connects. Each role has a signing key of its own in the account."""

    NODE = "node"
    GATEWAY = "gateway"
    CONTROLLER = "controller"


def template(role: BusRole) -> dict[str, Any]:
    """The claims ("user scope template") of a role."""
    if role is BusRole.NODE:
        return _template([f"panal.up.{_OWN_KEY}.>"], [f"panal.down.{_OWN_KEY}.>"], subscriptions=16)
    if role is BusRole.GATEWAY:
        verbs = (
            subjects.RUN,
            subjects.PART,
            subjects.ACKNOWLEDGE,
            subjects.CANCEL,
            subjects.PROBE,
            subjects.PRESENT,
        )
        return _template(
            [f"panal.down.*.{verb}" for verb in verbs],
            [
                f"panal.up.*.frames.{_OWN_NAME}",
                f"panal.absent.{_OWN_NAME}.*",
                subjects.ALL_HEARTBEATS,
                subjects.FLEET_CHANGED,
            ],
            subscriptions=16,
        )
    return _template(
        [f"panal.down.*.{subjects.INSTRUCT}", subjects.FLEET_CHANGED],
        [subjects.ALL_HEARTBEATS, subjects.ALL_REPORTS],
        subscriptions=16,
    )


def _template(publish: list[str], subscribe: list[str], *, subscriptions: int) -> dict[str, Any]:
    return {
        "pub": {"allow": publish},
        "sub": {"allow": subscribe},
        "subs": subscriptions,
        "data": -1,
        "payload": PAYLOAD_BYTES_MAX,
        "allowed_connection_types": ["STANDARD"],
    }
