"""Principals: the people and programs that own keys."""

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from panal.core.ids import PrincipalId, ProjectId, TenantId
from panal.store import tables
from panal.store.revisions import Revisions


@dataclass(frozen=True, slots=True)
class PrincipalRecord:
    principal_id: PrincipalId
    tenant_id: TenantId
    project_id: ProjectId
    name: str
    disabled: bool
    created_utc_us: int


class Principals:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, record: PrincipalRecord) -> None:
        await self._connection.execute(
            tables.principals.insert().values(
                principal_id=record.principal_id,
                tenant_id=record.tenant_id,
                project_id=record.project_id,
                name=record.name,
                disabled=record.disabled,
                created_utc_us=record.created_utc_us,
            )
        )

    async def get(self, tenant_id: TenantId, principal_id: PrincipalId) -> PrincipalRecord | None:
        rows = tables.principals
        query = rows.select().where(rows.c.tenant_id == tenant_id, rows.c.principal_id == principal_id)
        row = (await self._connection.execute(query)).one_or_none()
        return None if row is None else PrincipalRecord(*row)

    async def disable(self, tenant_id: TenantId, principal_id: PrincipalId) -> bool:
        """False when there is no such principal. All its keys are dead once directories refresh."""
        rows = tables.principals
        done = await self._connection.execute(
            rows.update()
            .where(rows.c.tenant_id == tenant_id, rows.c.principal_id == principal_id)
            .values(disabled=sa.true())
        )
        await Revisions(self._connection).advance("keys")
        return done.rowcount == 1

    async def has_project(self, tenant_id: TenantId, project_id: str) -> bool:
        rows = tables.projects
        query = sa.select(rows.c.project_id).where(
            rows.c.tenant_id == tenant_id, rows.c.project_id == project_id
        )
        return (await self._connection.execute(query)).one_or_none() is not None
