"""What every operation needs, and who may call it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from panal.core.clock import Clock
from panal.core.errors import NotAllowed
from panal.core.ids import IdSource
from panal.core.principals import Principal, Role
from panal.core.records import NodeRecord, utc_us
from panal.identity.seams import CredentialIssuer
from panal.store import Store, Transaction

T = TypeVar("T")

_RANK = {Role.USER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}

PAGE_ITEMS = 100
PAGE_ITEMS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Means:
    """``notify`` tells every gateway that nodes or keys changed; ``pin`` goes into join tokens; ``wake`` asks
    neighbours to wake a node and returns their names, None where it is awake already."""

    store: Store
    issuer: CredentialIssuer
    ids: IdSource
    clock: Clock
    entropy: Callable[[int], bytes]
    pepper: bytes
    pin: str
    notify: Callable[[], None]
    wake: Callable[[NodeRecord], tuple[str, ...] | None] = lambda _sleeper: ()

    def now_utc_us(self) -> int:
        return utc_us(self.clock)

    async def audit(
        self,
        tx: Transaction,
        actor: Principal,
        action: str,
        target: str,
        details: dict[str, str | int | bool] | None = None,
    ) -> None:
        """Appends to the audit log in the same transaction; if that fails, so does the change."""
        await tx.audit.append(
            event_id=self.ids.other("evt"),
            actor=actor,
            action=action,
            target=target,
            now_utc_us=self.now_utc_us(),
            details=details,
        )


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list. ``next`` asks for the part after it; empty at the end."""

    items: list[T]
    next: str = ""


def require(actor: Principal, role: Role) -> None:
    """Raises NotAllowed unless the actor has at least this role."""
    if not has(actor, role):
        raise NotAllowed(f"This needs a key with the role '{role.value}'; yours has '{actor.role.value}'.")


def has(actor: Principal, role: Role) -> bool:
    return _RANK[actor.role] >= _RANK[role]


def exceeds(role: Role, other: Role) -> bool:
    """Whether the first role may do more than the other."""
    return _RANK[role] > _RANK[other]


def page_items(limit: int) -> int:
    """How many items a page has for a wished limit."""
    return max(1, min(limit, PAGE_ITEMS_MAX))


def seconds(moment_utc_us: int | None) -> float | None:
    """Microseconds as seconds, the unit of the API."""
    return None if moment_utc_us is None else moment_utc_us / 1_000_000
