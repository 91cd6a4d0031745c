"""Nodes: who was admitted, under which key, and what the operators decided about them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from panal.core.errors import Conflict
from panal.core.ids import JoinTokenId, NodeId, NodeKey, ProjectId, TenantId
from panal.core.nodes import DataClass, Membership, NodeClass
from panal.core.records import NodeRecord
from panal.store import tables
from panal.store.revisions import Revisions
from panal.store.statements import checked_page, greater, insert_or_ignore, pages

_NODES = tables.nodes
_KEYS = tables.node_keys

SAME_NAMES_MAX = 100_000
"""How many nodes may wish for the same name; far more than any site has, yet an end to the search."""


class Nodes:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def admit(self, wished: NodeRecord) -> NodeRecord:
        """Adds a node; the record returned may have another name (desk, desk-2, ...).

        Raises Conflict when its key was ever enrolled, also by a node revoked since.
        """
        if await self.by_key(wished.key) is not None:
            raise Conflict("This node key was enrolled before.")
        record = await self._insert_under_free_name(wished)
        await self._connection.execute(
            _KEYS.insert().values(
                node_key=record.key, node_id=record.node_id, since_utc_us=record.joined_utc_us
            )
        )
        await Revisions(self._connection).advance("nodes")
        return record

    async def _insert_under_free_name(self, wished: NodeRecord) -> NodeRecord:
        used = await self._names_like(wished.tenant_id, wished.name)
        for number in range(1, SAME_NAMES_MAX):
            name = wished.name if number == 1 else f"{wished.name}-{number}"
            if name in used:
                continue
            record = replace(wished, name=name)
            done = await self._connection.execute(
                insert_or_ignore(self._connection, _NODES).values(_values(record))
            )
            if done.rowcount == 1:
                return record
            if await self.by_key(wished.key) is not None:
                raise Conflict("This node key was enrolled before.")
        raise Conflict(f"Too many nodes are called {wished.name!r}.")

    async def _names_like(self, tenant_id: TenantId, name: str) -> set[str]:
        query = sa.select(_NODES.c.name).where(
            _NODES.c.tenant_id == tenant_id,
            _NODES.c.membership != Membership.REVOKED.value,
            _NODES.c.name.startswith(name, autoescape=True),
        )
        return set((await self._connection.execute(query)).scalars())

    async def get(self, node_id: NodeId) -> NodeRecord | None:
        return await self._one(_NODES.c.node_id == node_id)

    async def by_key(self, key: NodeKey) -> NodeRecord | None:
        """The node that has this key now or had it once; compare ``key`` to know which."""
        owner = sa.select(_KEYS.c.node_id).where(_KEYS.c.node_key == key).scalar_subquery()
        return await self._one(_NODES.c.node_id == owner)

    async def find(self, tenant_id: TenantId, name_or_id: str) -> NodeRecord | None:
        """By id, else by the name of a node that is not revoked."""
        found = await self._one(_NODES.c.tenant_id == tenant_id, _NODES.c.node_id == name_or_id)
        return found or await self._one(
            _NODES.c.tenant_id == tenant_id,
            _NODES.c.name == name_or_id,
            _NODES.c.membership != Membership.REVOKED.value,
        )

    async def _one(self, *conditions: sa.ColumnElement[bool]) -> NodeRecord | None:
        row = (await self._connection.execute(_NODES.select().where(*conditions))).one_or_none()
        return None if row is None else _record(row)

    async def list(self, tenant_id: TenantId, *, after: str = "", limit: int = 100) -> Sequence[NodeRecord]:
        """Nodes in order of their ids, from the first id greater than ``after``; revoked ones too."""
        query = (
            _NODES.select()
            .where(_NODES.c.tenant_id == tenant_id, _NODES.c.node_id > after)
            .order_by(_NODES.c.node_id)
            .limit(checked_page(limit))
        )
        return [_record(row) for row in await self._connection.execute(query)]

    async def all(self) -> Sequence[NodeRecord]:
        """Every node of every tenant that is not revoked: what gateways and controller work with."""
        query = _NODES.select().where(_NODES.c.membership != Membership.REVOKED.value)
        found: list[NodeRecord] = []
        async for page in pages(self._connection, query, _NODES.c.node_id):
            found += [_record(row) for row in page]
        return found

    async def revoked_keys(self) -> Sequence[NodeKey]:
        """Keys that the bus must not let in: of revoked nodes, and keys that were replaced."""
        query = (
            sa.select(_KEYS.c.node_key)
            .join(_NODES, _NODES.c.node_id == _KEYS.c.node_id)
            .where(sa.or_(_NODES.c.membership == Membership.REVOKED.value, _KEYS.c.until_utc_us.is_not(None)))
        )
        return [NodeKey(key) for key in (await self._connection.execute(query)).scalars()]

    async def decide(
        self, node_id: NodeId, membership: Membership, reason: str, *, expected: Membership
    ) -> bool:
        """Changes the membership; False when it is no longer ``expected``."""
        done = await self._connection.execute(
            _NODES.update()
            .where(_NODES.c.node_id == node_id, _NODES.c.membership == expected.value)
            .values(membership=membership.value, reason=reason)
        )
        await Revisions(self._connection).advance("nodes")
        return done.rowcount == 1

    async def replace_key(self, node_id: NodeId, key: NodeKey, now_utc_us: int) -> None:
        """Gives a node a new key; the old one stays in its history. Raises Conflict for a key known here."""
        if await self.by_key(key) is not None:
            raise Conflict("This node key was enrolled before.")
        await self._connection.execute(
            _KEYS.update()
            .where(_KEYS.c.node_id == node_id, _KEYS.c.until_utc_us.is_(None))
            .values(until_utc_us=now_utc_us)
        )
        await self._connection.execute(
            _KEYS.insert().values(node_key=key, node_id=node_id, since_utc_us=now_utc_us)
        )
        await self._connection.execute(
            _NODES.update().where(_NODES.c.node_id == node_id).values(node_key=key)
        )
        await Revisions(self._connection).advance("nodes")

    async def set_wake_macs(self, node_id: NodeId, macs: Sequence[str]) -> None:
        """The addresses by which it may be woken from now on; none: it must not be."""
        await self._connection.execute(
            _NODES.update().where(_NODES.c.node_id == node_id).values(wake_macs=" ".join(macs))
        )
        await Revisions(self._connection).advance("nodes")

    async def note_seen(self, seen_utc_us: Mapping[NodeId, int]) -> None:
        """Moves times of last sight forward, never back. Not a change that readers must notice."""
        if not seen_utc_us:
            return
        moment = sa.bindparam("seen", type_=sa.BigInteger)
        before = sa.func.coalesce(_NODES.c.last_seen_utc_us, 0)
        statement = (
            _NODES.update()
            .where(_NODES.c.node_id == sa.bindparam("of_node"))
            .values(last_seen_utc_us=greater(self._connection, before, moment))
        )
        await self._connection.execute(
            statement, [{"of_node": node, "seen": seen} for node, seen in sorted(seen_utc_us.items())]
        )


def _values(record: NodeRecord) -> dict[str, Any]:
    return {
        "node_id": record.node_id,
        "tenant_id": record.tenant_id,
        "project_id": record.project_id,
        "name": record.name,
        "node_key": record.key,
        "machine": record.machine,
        "node_class": record.node_class.value,
        "site": record.site,
        "country": record.country,
        "data_class": int(record.data_class),
        "membership": record.membership.value,
        "reason": record.reason,
        "token_id": record.token_id,
        "joined_utc_us": record.joined_utc_us,
        "last_seen_utc_us": record.last_seen_utc_us,
        "wake_macs": " ".join(record.wake_macs),
    }


def _record(row: sa.Row[Any]) -> NodeRecord:
    return NodeRecord(
        node_id=NodeId(row.node_id),
        tenant_id=TenantId(row.tenant_id),
        project_id=ProjectId(row.project_id),
        name=row.name,
        key=NodeKey(row.node_key),
        machine=row.machine,
        node_class=NodeClass(row.node_class),
        site=row.site,
        country=row.country,
        data_class=DataClass(row.data_class),
        membership=Membership(row.membership),
        reason=row.reason,
        token_id=JoinTokenId(row.token_id),
        joined_utc_us=row.joined_utc_us,
        last_seen_utc_us=row.last_seen_utc_us,
        wake_macs=tuple(row.wake_macs.split()),
    )
