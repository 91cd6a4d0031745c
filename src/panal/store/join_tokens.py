"""Join tokens, without their secrets."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from panal.core.ids import JoinTokenId, PrincipalId, ProjectId, TenantId
from panal.core.nodes import DataClass, NodeClass
from panal.core.records import JoinTokenRecord
from panal.store import tables
from panal.store.statements import checked_page

_TOKENS = tables.join_tokens


class JoinTokens:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, record: JoinTokenRecord) -> None:
        await self._connection.execute(
            _TOKENS.insert().values(
                token_id=record.token_id,
                public_id=record.public_id,
                tenant_id=record.tenant_id,
                project_id=record.project_id,
                created_by=record.created_by,
                digest=record.digest,
                uses_left=record.uses_left,
                created_utc_us=record.created_utc_us,
                expires_utc_us=record.expires_utc_us,
                node_class=record.node_class.value,
                site=record.site,
                country=record.country,
                data_class=int(record.data_class),
                approve=record.approve,
                revoked_utc_us=record.revoked_utc_us,
            )
        )

    async def by_public_id(self, public_id: str) -> JoinTokenRecord | None:
        query = _TOKENS.select().where(_TOKENS.c.public_id == public_id)
        row = (await self._connection.execute(query)).one_or_none()
        return None if row is None else _record(row)

    async def take_use(self, token_id: JoinTokenId, now_utc_us: int) -> bool:
        """Uses up one use of a token that is still good; False when it is not. Safe against a race."""
        done = await self._connection.execute(
            _TOKENS.update()
            .where(
                _TOKENS.c.token_id == token_id,
                _TOKENS.c.uses_left > 0,
                _TOKENS.c.expires_utc_us > now_utc_us,
                _TOKENS.c.revoked_utc_us.is_(None),
            )
            .values(uses_left=_TOKENS.c.uses_left - 1)
        )
        return done.rowcount == 1

    async def get(self, tenant_id: TenantId, token_id: JoinTokenId) -> JoinTokenRecord | None:
        query = _TOKENS.select().where(_TOKENS.c.tenant_id == tenant_id, _TOKENS.c.token_id == token_id)
        row = (await self._connection.execute(query)).one_or_none()
        return None if row is None else _record(row)

    async def list(
        self, tenant_id: TenantId, *, after: str = "", limit: int = 100
    ) -> Sequence[JoinTokenRecord]:
        """Tokens in order of their ids, from the first id greater than ``after``; dead ones too."""
        query = (
            _TOKENS.select()
            .where(_TOKENS.c.tenant_id == tenant_id, _TOKENS.c.token_id > after)
            .order_by(_TOKENS.c.token_id)
            .limit(checked_page(limit))
        )
        return [_record(row) for row in await self._connection.execute(query)]

    async def revoke(self, tenant_id: TenantId, token_id: JoinTokenId, now_utc_us: int) -> bool:
        """False when there is no such token or it was revoked before."""
        done = await self._connection.execute(
            _TOKENS.update()
            .where(
                _TOKENS.c.tenant_id == tenant_id,
                _TOKENS.c.token_id == token_id,
                _TOKENS.c.revoked_utc_us.is_(None),
            )
            .values(revoked_utc_us=now_utc_us)
        )
        return done.rowcount == 1


def _record(row: sa.Row[Any]) -> JoinTokenRecord:
    return JoinTokenRecord(
        token_id=JoinTokenId(row.token_id),
        public_id=row.public_id,
        tenant_id=TenantId(row.tenant_id),
        project_id=ProjectId(row.project_id),
        created_by=PrincipalId(row.created_by),
        digest=bytes(row.digest),
        uses_left=row.uses_left,
        created_utc_us=row.created_utc_us,
        expires_utc_us=row.expires_utc_us,
        node_class=NodeClass(row.node_class),
        site=row.site,
        country=row.country,
        data_class=DataClass(row.data_class),
        approve=row.approve,
        revoked_utc_us=row.revoked_utc_us,
    )
