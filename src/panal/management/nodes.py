"""Nodes: list, show, approve, cordon, uncordon, drain, revoke, wake.

Of a node only the membership is changed here; it survives restarts. The controller carries it out, because
it is told that the fleet changed.
"""

import msgspec

from panal.core.errors import Conflict, NotFound
from panal.core.ids import NodeKey
from panal.core.nodes import Membership
from panal.core.principals import Principal, Role
from panal.core.records import NodeRecord
from panal.management.means import PAGE_ITEMS, Means, Page, page_items, require, seconds
from panal.store import Transaction

REASON_CHARACTERS_MAX = 200

_ALLOWED_FROM = {
    "approve": (Membership.PENDING,),
    "cordon": (Membership.ACTIVE, Membership.DRAINING),
    "uncordon": (Membership.CORDONED, Membership.DRAINING),
    "drain": (Membership.ACTIVE, Membership.CORDONED),
    "revoke": (Membership.PENDING, Membership.ACTIVE, Membership.CORDONED, Membership.DRAINING),
}


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node as the operators know it; its load is the controller's to tell."""

    id: str
    name: str
    key: str
    membership: str
    reason: str
    node_class: str
    site: str
    country: str
    data_class: str
    joined_utc_s: float
    last_seen_utc_s: float | None
    wakeable: bool
    """It opted in to be woken from sleep. By which addresses is not shown."""


class WakeView(msgspec.Struct, frozen=True, kw_only=True):
    """``asked``: names of the live nodes of its site that were asked to wake it. ``awake``: none was."""

    node: str
    awake: bool
    asked: list[str]


class NodeOperations:
    """Every change is no error when it is done already, and Conflict when the node's state forbids it."""

    def __init__(self, means: Means) -> None:
        self._means = means

    async def list(self, actor: Principal, *, after: str = "", limit: int = PAGE_ITEMS) -> Page[NodeView]:
        """Needs OPERATOR. Raises NotAllowed, StoreError."""
        require(actor, Role.OPERATOR)
        async with self._means.store.reading() as tx:
            records = await tx.nodes.list(actor.tenant_id, after=after, limit=page_items(limit))
        following = records[-1].node_id if len(records) == page_items(limit) else ""
        return Page([_view(record) for record in records], following)

    async def show(self, actor: Principal, name_or_id: str) -> NodeView:
        """Needs OPERATOR. Raises NotAllowed, NotFound, StoreError."""
        require(actor, Role.OPERATOR)
        async with self._means.store.reading() as tx:
            return _view(await _found(tx, actor, name_or_id))

    async def approve(self, actor: Principal, name_or_id: str) -> NodeView:
        """Needs ADMIN. Lets a pending node in. Raises NotAllowed, NotFound, Conflict, StoreError."""
        return await self._change(actor, name_or_id, "approve", Membership.ACTIVE, "")

    async def cordon(self, actor: Principal, name_or_id: str, reason: str = "") -> NodeView:
        """Needs ADMIN. No new work for the node. Raises NotAllowed, NotFound, Conflict, StoreError."""
        return await self._change(actor, name_or_id, "cordon", Membership.CORDONED, reason)

    async def uncordon(self, actor: Principal, name_or_id: str) -> NodeView:
        """Needs ADMIN. Ends cordon and drain. Raises NotAllowed, NotFound, Conflict, StoreError."""
        return await self._change(actor, name_or_id, "uncordon", Membership.ACTIVE, "")

    async def drain(self, actor: Principal, name_or_id: str, reason: str = "") -> NodeView:
        """Needs ADMIN. Finish or hand over, then leave. Raises NotAllowed, NotFound, Conflict, StoreError."""
        return await self._change(actor, name_or_id, "drain", Membership.DRAINING, reason)

    async def revoke(self, actor: Principal, name_or_id: str, reason: str = "") -> NodeView:
        """Needs ADMIN. Shuts the node out for ever; doing it again tells the bus again.

        Raises NotAllowed, NotFound, StoreError, and BusError when the store has it but the bus could not
        be told: then call again.
        """
        view = await self._change(actor, name_or_id, "revoke", Membership.REVOKED, reason)
        await self._means.issuer.revoke(NodeKey(view.key))
        return view

    async def wake(self, actor: Principal, name_or_id: str) -> WakeView:
        """Needs OPERATOR. Asks live nodes of its site to wake a sleeping one; whether it wakes, its
        heartbeats tell. Raises NotAllowed, NotFound, StoreError, and Conflict where the node has not opted
        in or nobody of its site is there."""
        require(actor, Role.OPERATOR)
        means = self._means
        async with means.store.transaction() as tx:
            node = await _found(tx, actor, name_or_id)
            if node.membership in (Membership.PENDING, Membership.REVOKED):
                raise Conflict(f"The node {node.name} is {node.membership.value}: it cannot be woken.")
            if not node.wake_macs:
                raise Conflict(
                    f"The node {node.name} has not opted in to be woken: set node.wake on that machine."
                )
            await means.audit(tx, actor, "node.wake", node.node_id)
        asked = means.wake(node)
        if asked is not None and not asked:
            site = f"at the site {node.site}" if node.site else "without a site, like it"
            raise Conflict(f"No other live node {site}: nobody there can wake {node.name}.")
        return WakeView(node=node.name, awake=asked is None, asked=list(asked or ()))

    async def _change(
        self,
        actor: Principal,
        name_or_id: str,
        verb: str,
        wanted: Membership,
        reason: str,
    ) -> NodeView:
        require(actor, Role.ADMIN)
        means = self._means
        reason = reason[:REASON_CHARACTERS_MAX]
        async with means.store.transaction() as tx:
            before = await _found(tx, actor, name_or_id)
            if before.membership is not wanted:
                await self._decide(tx, before, verb, wanted, reason)
                await means.audit(tx, actor, f"node.{verb}", before.node_id, {"reason": reason})
            after = await _found(tx, actor, before.node_id)
        means.notify()
        return _view(after)

    async def _decide(
        self, tx: Transaction, before: NodeRecord, verb: str, wanted: Membership, reason: str
    ) -> None:
        allowed = before.membership in _ALLOWED_FROM[verb]
        if not allowed or not await tx.nodes.decide(
            before.node_id, wanted, reason, expected=before.membership
        ):
            raise Conflict(
                f"The node {before.name} is {before.membership.value}: {verb} is not possible now."
            )


async def _found(tx: Transaction, actor: Principal, name_or_id: str) -> NodeRecord:
    node = await tx.nodes.find(actor.tenant_id, name_or_id)
    if node is None:
        raise NotFound("There is no such node.")
    return node


def _view(record: NodeRecord) -> NodeView:
    return NodeView(
        id=record.node_id,
        name=record.name,
        key=record.key,
        membership=record.membership.value,
        reason=record.reason,
        node_class=record.node_class.value,
        site=record.site,
        country=record.country,
        data_class=record.data_class.label,
        joined_utc_s=record.joined_utc_us / 1_000_000,
        last_seen_utc_s=seconds(record.last_seen_utc_us),
        wakeable=bool(record.wake_macs),
    )
