"""API keys, by their digests."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from panal.core.ids import ApiKeyId, PrincipalId, ProjectId, TenantId
from panal.core.names import name_key
from panal.core.nodes import DataClass
from panal.core.principals import Role
from panal.core.records import ApiKeyRecord
from panal.store import tables
from panal.store.revisions import Revisions
from panal.store.statements import (
    checked_page,
    greater,
    names_set,
    names_text,
    pages,
    residency_set,
    residency_text,
)

_KEYS = tables.api_keys


class ApiKeys:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, record: ApiKeyRecord) -> None:
        await self._connection.execute(
            _KEYS.insert().values(
                key_id=record.key_id,
                tenant_id=record.tenant_id,
                project_id=record.project_id,
                principal_id=record.principal_id,
                name=record.name,
                digest=record.digest,
                shown=record.shown,
                role=record.role.value,
                data_class=int(record.data_class),
                residency=residency_text(record.residency),
                created_utc_us=record.created_utc_us,
                expires_utc_us=record.expires_utc_us,
                revoked_utc_us=record.revoked_utc_us,
                last_used_utc_us=record.last_used_utc_us,
                models=names_text(record.models),
                tools_whole=record.tools_whole,
            )
        )
        await Revisions(self._connection).advance("keys")

    async def get(self, tenant_id: TenantId, key_id: ApiKeyId) -> ApiKeyRecord | None:
        query = _KEYS.select().where(_KEYS.c.tenant_id == tenant_id, _KEYS.c.key_id == key_id)
        row = (await self._connection.execute(query)).one_or_none()
        return None if row is None else _record(row)

    async def list(
        self, tenant_id: TenantId, *, after: str = "", limit: int = 100, of: PrincipalId | None = None
    ) -> Sequence[ApiKeyRecord]:
        """Keys in order of their ids, from the first id greater than ``after``; revoked ones too."""
        query = _KEYS.select().where(_KEYS.c.tenant_id == tenant_id, _KEYS.c.key_id > after)
        if of is not None:
            query = query.where(_KEYS.c.principal_id == of)
        query = query.order_by(_KEYS.c.key_id).limit(checked_page(limit))
        return [_record(row) for row in await self._connection.execute(query)]

    async def revoke(self, tenant_id: TenantId, key_id: ApiKeyId, now_utc_us: int) -> bool:
        """False when there is no such key or it was revoked before."""
        done = await self._connection.execute(
            _KEYS.update()
            .where(_KEYS.c.tenant_id == tenant_id, _KEYS.c.key_id == key_id, _KEYS.c.revoked_utc_us.is_(None))
            .values(revoked_utc_us=now_utc_us)
        )
        await Revisions(self._connection).advance("keys")
        return done.rowcount == 1

    async def set_models(self, tenant_id: TenantId, key_id: ApiKeyId, models: frozenset[str]) -> None:
        """The names that a key may use from now on; none: all."""
        await self._set(tenant_id, key_id, models=names_text(models))

    async def set_tools_whole(self, tenant_id: TenantId, key_id: ApiKeyId, whole: bool) -> None:
        """Whether a key's tool calls come in one piece from now on."""
        await self._set(tenant_id, key_id, tools_whole=whole)

    async def _set(self, tenant_id: TenantId, key_id: ApiKeyId, **values: str | bool) -> None:
        await self._connection.execute(
            _KEYS.update().where(_KEYS.c.tenant_id == tenant_id, _KEYS.c.key_id == key_id).values(**values)
        )
        await Revisions(self._connection).advance("keys")

    async def rename_model(self, tenant_id: TenantId, name: str, new_name: str) -> int:
        """A name is called otherwise from now on: keys that may use it keep it. Gives their number."""
        query = sa.select(_KEYS.c.key_id, _KEYS.c.models)
        query = query.where(_KEYS.c.tenant_id == tenant_id, _KEYS.c.models != "")
        query = query.with_for_update()  # what somebody else sets meanwhile must not be undone
        key, changes = name_key(name), []
        async for page in pages(self._connection, query, _KEYS.c.key_id):
            for row in page:
                models = names_set(row.models)
                kept = frozenset(each for each in models if name_key(each) != key)
                if kept != models:
                    changes.append({"of_key": row.key_id, "now": names_text(kept | {new_name})})
        if changes:
            statement = _KEYS.update().where(_KEYS.c.key_id == sa.bindparam("of_key"))
            await self._connection.execute(statement.values(models=sa.bindparam("now")), changes)
            await Revisions(self._connection).advance("keys")
        return len(changes)

    async def usable(self) -> Sequence[ApiKeyRecord]:
        """Keys that are not revoked, of principals that are not disabled. Expiry is the reader's to check."""
        owner = tables.principals
        query = (
            sa.select(_KEYS)
            .join(owner, owner.c.principal_id == _KEYS.c.principal_id)
            .where(_KEYS.c.revoked_utc_us.is_(None), owner.c.disabled == sa.false())
        )
        found: list[ApiKeyRecord] = []
        async for page in pages(self._connection, query, _KEYS.c.key_id):
            found += [_record(row) for row in page]
        return found

    async def note_use(self, used_utc_us: Mapping[ApiKeyId, int]) -> None:
        """Moves times of last use forward, never back."""
        if not used_utc_us:
            return
        moment = sa.bindparam("used", type_=sa.BigInteger)
        before = sa.func.coalesce(_KEYS.c.last_used_utc_us, 0)
        statement = (
            _KEYS.update()
            .where(_KEYS.c.key_id == sa.bindparam("of_key"))
            .values(last_used_utc_us=greater(self._connection, before, moment))
        )
        await self._connection.execute(
            statement, [{"of_key": key, "used": used} for key, used in sorted(used_utc_us.items())]
        )


def _record(row: sa.Row[Any]) -> ApiKeyRecord:
    return ApiKeyRecord(
        key_id=ApiKeyId(row.key_id),
        tenant_id=TenantId(row.tenant_id),
        project_id=ProjectId(row.project_id),
        principal_id=PrincipalId(row.principal_id),
        name=row.name,
        digest=bytes(row.digest),
        shown=row.shown,
        role=Role(row.role),
        data_class=DataClass(row.data_class),
        residency=residency_set(row.residency),
        created_utc_us=row.created_utc_us,
        expires_utc_us=row.expires_utc_us,
        revoked_utc_us=row.revoked_utc_us,
        last_used_utc_us=row.last_used_utc_us,
        models=names_set(row.models),
        tools_whole=row.tools_whole,
    )
