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
from panal.store.statements import checked_page, insert

_ROWS = tables.contributions
_KEY = ["request_id", "attempt"]
_COUNTED = ("prompt_tokens", "completion_tokens", "duration_us")


class Contributions:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, contributions: Sequence[Contribution]) -> None:
        """The gateway's half. Counts that the node confirmed stay."""
        if not contributions:
            return
        row = insert(self._connection, _ROWS)
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
        await self._connection.execute(statement, [_values(each, confirmed=False) for each in contributions])

    async def confirm(self, counts: Sequence[Contribution]) -> None:
        """The node's half: what it made. Of an attempt that another node is known for, nothing is changed.

        Tenant, project, principal and useful tokens of ``counts`` are used only while the gateway's half
        is missing.
        """
        if not counts:
            return
        row = insert(self._connection, _ROWS)
        changes: dict[str, Any] = {name: row.excluded[name] for name in _COUNTED}
        statement = row.on_conflict_do_update(
            index_elements=_KEY,
            set_={**changes, "confirmed": sa.true()},
            where=_ROWS.c.node_id == row.excluded.node_id,
        )
        await self._connection.execute(statement, [_values(each, confirmed=True) for each in counts])

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


def _values(each: Contribution, *, confirmed: bool) -> dict[str, Any]:
    return {
        "request_id": each.request_id,
        "attempt": each.attempt,
        "tenant_id": each.tenant_id,
        "project_id": each.project_id,
        "principal_id": each.principal_id,
        "node_id": each.node_id,
        "model": each.model,
        "outcome": each.outcome.value,
        "prompt_tokens": each.prompt_tokens,
        "completion_tokens": each.completion_tokens,
        "useful_tokens": each.useful_tokens,
        "duration_us": each.duration_us,
        "confirmed": confirmed,
        "created_utc_us": each.created_utc_us,
    }


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
