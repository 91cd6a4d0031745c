"""Aliases: other names for models. One name, as ``core.names`` compares names, is there once in a tenant."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from panal.core.ids import ProjectId, TenantId
from panal.core.names import name_key
from panal.core.records import AliasRecord
from panal.store import tables
from panal.store.revisions import Revisions
from panal.store.statements import checked_page

_ALIASES = tables.aliases


class Aliases:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def all(self) -> Sequence[AliasRecord]:
        """Of every tenant."""
        query = _ALIASES.select().order_by(_ALIASES.c.tenant_id, _ALIASES.c.name_key)
        return [_record(row) for row in await self._connection.execute(query)]

    async def list(self, tenant_id: TenantId, *, after: str = "", limit: int = 100) -> Sequence[AliasRecord]:
        """In order of their keys, from the first key greater than ``after``."""
        query = _ALIASES.select().where(_ALIASES.c.tenant_id == tenant_id, _ALIASES.c.name_key > after)
        query = query.order_by(_ALIASES.c.name_key).limit(checked_page(limit))
        return [_record(row) for row in await self._connection.execute(query)]

    async def get(self, tenant_id: TenantId, name: str) -> AliasRecord | None:
        query = _ALIASES.select().where(*_of(tenant_id, name))
        row = (await self._connection.execute(query)).one_or_none()
        return None if row is None else _record(row)

    async def add(self, record: AliasRecord) -> None:
        """Raises Conflict where the tenant has an alias of that name."""
        await self._connection.execute(
            _ALIASES.insert().values(
                tenant_id=record.tenant_id,
                name_key=record.key,
                project_id=record.project_id,
                name=record.name,
                model=record.model,
                created_utc_us=record.created_utc_us,
                changed_utc_us=record.changed_utc_us,
            )
        )
        await Revisions(self._connection).advance("names")

    async def set_model(self, tenant_id: TenantId, name: str, model: str, now_utc_us: int) -> bool:
        """Leads to another model from now on; False when there is no such alias."""
        return await self._change(tenant_id, name, {"model": model, "changed_utc_us": now_utc_us})

    async def rename(self, tenant_id: TenantId, name: str, new_name: str, now_utc_us: int) -> bool:
        """False when there is no such alias; raises Conflict where another one has the new name."""
        values = {"name": new_name, "name_key": name_key(new_name), "changed_utc_us": now_utc_us}
        return await self._change(tenant_id, name, values)

    async def remove(self, tenant_id: TenantId, name: str) -> bool:
        """False when there is no such alias."""
        done = await self._connection.execute(_ALIASES.delete().where(*_of(tenant_id, name)))
        await Revisions(self._connection).advance("names")
        return done.rowcount == 1

    async def _change(self, tenant_id: TenantId, name: str, values: dict[str, Any]) -> bool:
        statement = _ALIASES.update().where(*_of(tenant_id, name)).values(**values)
        done = await self._connection.execute(statement)
        await Revisions(self._connection).advance("names")
        return done.rowcount == 1


def _of(tenant_id: TenantId, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return _ALIASES.c.tenant_id == tenant_id, _ALIASES.c.name_key == name_key(name)


def _record(row: sa.Row[Any]) -> AliasRecord:
    return AliasRecord(
        tenant_id=TenantId(row.tenant_id),
        project_id=ProjectId(row.project_id),
        name=row.name,
        model=row.model,
        created_utc_us=row.created_utc_us,
        changed_utc_us=row.changed_utc_us,
    )
