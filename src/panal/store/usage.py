"""Usage records: one row a request, however often it is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from panal.core.ids import ApiKeyId, PrincipalId, ProjectId, RequestId, TenantId
from panal.ledger.values import Outcome, UsageRecord
from panal.store import tables
from panal.store.statements import PAGE_ROWS_MAX, checked_page, insert_or_ignore, write_records

_USAGE = tables.usage_records


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Sums over records."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    attempts: int


class UsageRecords:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, records: Sequence[UsageRecord]) -> None:
        """Writes records; those already there stay as they are."""
        if records:
            await write_records(self._connection, insert_or_ignore(self._connection, _USAGE), records)

    async def list(
        self,
        tenant_id: TenantId,
        *,
        before: str = "",
        limit: int = 100,
        of: PrincipalId | None = None,
        model: str | None = None,
        since_utc_us: int | None = None,
        until_utc_us: int | None = None,
    ) -> Sequence[UsageRecord]:
        """Newest requests first, from the first id less than ``before`` (ids are ordered by time)."""
        query = _USAGE.select().where(*_conditions(tenant_id, of, model, since_utc_us, until_utc_us))
        if before:
            query = query.where(_USAGE.c.request_id < before)
        query = query.order_by(_USAGE.c.request_id.desc()).limit(checked_page(limit))
        return [_record(row) for row in await self._connection.execute(query)]

    async def totals(
        self,
        tenant_id: TenantId,
        *,
        of: PrincipalId | None = None,
        model: str | None = None,
        since_utc_us: int | None = None,
        until_utc_us: int | None = None,
    ) -> UsageTotals:
        """Sums over the records that are ``since <= created < until``."""
        columns = ("prompt_tokens", "completion_tokens", "cached_tokens", "attempts")
        sums = (sa.func.coalesce(sa.func.sum(_USAGE.c[name]), 0) for name in columns)
        query = sa.select(sa.func.count(), *sums).where(
            *_conditions(tenant_id, of, model, since_utc_us, until_utc_us)
        )
        return UsageTotals(*(int(value) for value in (await self._connection.execute(query)).one()))

    async def count_before(self, tenant_id: TenantId, before_utc_us: int) -> int:
        """How many records of a tenant are older."""
        query = sa.select(sa.func.count()).where(*_conditions(tenant_id, None, None, None, before_utc_us))
        return int((await self._connection.execute(query)).scalar_one())

    async def tenant_after(self, tenant_id: str) -> TenantId | None:
        """The next tenant that has records, in the order of ids; without a look at every record."""
        query = sa.select(sa.func.min(_USAGE.c.tenant_id)).where(_USAGE.c.tenant_id > tenant_id)
        found = (await self._connection.execute(query)).scalar_one()
        return None if found is None else TenantId(found)

    async def remove_page(
        self, tenant_id: TenantId, before_utc_us: int, since_utc_us: int, limit: int = PAGE_ROWS_MAX
    ) -> tuple[int, int]:
        """Removes the oldest records of a tenant that are ``since <= created < before``, with their
        contributions. Gives how many, and when the newest of them was made.

        Fewer than ``limit`` means that none is left. Go on from the newest: PostgreSQL keeps removed rows
        in its index for a while, and would else pass them all again for each page.
        """
        query = sa.select(_USAGE.c.request_id, _USAGE.c.created_utc_us)
        query = query.where(*_conditions(tenant_id, None, None, since_utc_us, before_utc_us))
        query = query.order_by(_USAGE.c.created_utc_us).limit(checked_page(limit))
        rows = (await self._connection.execute(query)).all()
        if rows:
            requests = [row.request_id for row in rows]
            for table in (tables.contributions, _USAGE):
                await self._connection.execute(table.delete().where(table.c.request_id.in_(requests)))
        return len(rows), rows[-1].created_utc_us if rows else since_utc_us


def _conditions(
    tenant_id: TenantId,
    of: PrincipalId | None,
    model: str | None,
    since_utc_us: int | None,
    until_utc_us: int | None,
) -> list[sa.ColumnElement[bool]]:
    conditions = [_USAGE.c.tenant_id == tenant_id]
    if of is not None:
        conditions.append(_USAGE.c.principal_id == of)
    if model is not None:
        conditions.append(_USAGE.c.model == model)
    if since_utc_us is not None:
        conditions.append(_USAGE.c.created_utc_us >= since_utc_us)
    if until_utc_us is not None:
        conditions.append(_USAGE.c.created_utc_us < until_utc_us)
    return conditions


def _record(row: sa.Row[Any]) -> UsageRecord:
    return UsageRecord(
        request_id=RequestId(row.request_id),
        tenant_id=TenantId(row.tenant_id),
        project_id=ProjectId(row.project_id),
        principal_id=PrincipalId(row.principal_id),
        key_id=ApiKeyId(row.key_id),
        model=row.model,
        route=row.route,
        outcome=Outcome(row.outcome),
        error_code=row.error_code,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        cached_tokens=row.cached_tokens,
        estimated=row.estimated,
        partial=row.partial,
        attempts=row.attempts,
        queued_us=row.queued_us,
        first_token_us=row.first_token_us,
        total_us=row.total_us,
        created_utc_us=row.created_utc_us,
        name_used=row.name_used,
        resumes=row.resumes,
    )
