"""Contributions: one row an attempt, from what the gateway saw and what the node counted.

The gateway's half says for whom and how many tokens were of use; the node's half says what was really
made and confirms the row. They come in any order, any number of times, and end in the same row.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from panal.core.ids import NodeId, PrincipalId, ProjectId, RequestId, TenantId
from panal.ledger.values import AttemptOutcome, Contribution
from panal.store import tables
from panal.store.statements import checked_page, insert, write_records

_ROWS = tables.contributions
_KEY = ["request_id", "attempt"]
_FIELDS = tuple(column.name for column in _ROWS.c if column.name != "confirmed")
_COUNTED = ("prompt_tokens", "completion_tokens", "duration_us")


class Contributions:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, contributions: Sequence[Contribution]) -> None:
        """The gateway's half. Counts that the node confirmed stay."""
        if not contributions:
            return
        row = self._insert(confirmed=sa.false())
        ours = (
            "tenant_id",
            "project_id",
            "principal_id",
            "model",
            "outcome",
            "useful_tokens",
            "created_utc_us",
        )
        changes: dict[str, Any] = {name: row.excluded[name] for name in ours}
        for name in _COUNTED:
            changes[name] = sa.case((_ROWS.c.confirmed, _ROWS.c[name]), else_=row.excluded[name])
        statement = row.on_conflict_do_update(
            index_elements=_KEY, set_=changes, where=_ROWS.c.node_id == row.excluded.node_id
        )
        await write_records(self._connection, statement, contributions)

    async def confirm(self, counts: Sequence[Contribution]) -> None:
        """The node's half: what it made. Of an attempt that another node is known for, nothing is changed.

        Tenant, project, principal and useful tokens of ``counts`` are used only while the gateway's half
        is missing.
        """
        if not counts:
            return
        row = self._insert(confirmed=sa.true())
        changes: dict[str, Any] = {name: row.excluded[name] for name in _COUNTED}
        statement = row.on_conflict_do_update(
            index_elements=_KEY,
            set_={**changes, "confirmed": sa.true()},
            where=_ROWS.c.node_id == row.excluded.node_id,
        )
        await write_records(self._connection, statement, counts)

    def _insert(self, *, confirmed: sa.ColumnElement[bool]) -> Any:
        values: dict[str, Any] = {name: sa.bindparam(name, type_=_ROWS.c[name].type) for name in _FIELDS}
        return insert(self._connection, _ROWS).values(values | {"confirmed": confirmed})

    async def of_request(self, request_id: RequestId) -> Sequence[Contribution]:
        query = _ROWS.select().where(_ROWS.c.request_id == request_id).order_by(_ROWS.c.attempt)
        return [_record(row) for row in await self._connection.execute(query)]

    async def of_node(
        self, node_id: NodeId, *, since_utc_us: int = 0, limit: int = 100
    ) -> Sequence[Contribution]:
        """Contributions of a node, oldest first."""
        query = (
            _ROWS.select()
            .where(_ROWS.c.node_id == node_id, _ROWS.c.created_utc_us >= since_utc_us)
            .order_by(_ROWS.c.created_utc_us, _ROWS.c.request_id, _ROWS.c.attempt)
            .limit(checked_page(limit))
        )
        return [_record(row) for row in await self._connection.execute(query)]


def _record(row: sa.Row[Any]) -> Contribution:
    return Contribution(
        request_id=RequestId(row.request_id),
        attempt=row.attempt,
        tenant_id=TenantId(row.tenant_id),
        project_id=ProjectId(row.project_id),
        principal_id=PrincipalId(row.principal_id),
        node_id=NodeId(row.node_id),
        model=row.model,
        outcome=AttemptOutcome(row.outcome),
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        useful_tokens=row.useful_tokens,
        duration_us=row.duration_us,
        created_utc_us=row.created_utc_us,
    )
