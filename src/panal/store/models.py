"""Models that were served here once, so that a resting model is not taken for an unknown one."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from panal.core.ids import DEFAULT_TENANT, TenantId
from panal.store import tables
from panal.store.statements import greater, insert

_MODELS = tables.models


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """``twin`` is the digest of weights, template and tokenizer that was last seen under the name."""

    tenant_id: TenantId
    name: str
    twin: str
    first_seen_utc_us: int
    last_seen_utc_us: int


class Models:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def seen(
        self, name: str, twin: str, now_utc_us: int, *, tenant_id: TenantId = DEFAULT_TENANT
    ) -> None:
        """Notes that a model of that name is being served."""
        row = insert(self._connection, _MODELS).values(
            tenant_id=tenant_id,
            name=name,
            twin=twin,
            first_seen_utc_us=now_utc_us,
            last_seen_utc_us=now_utc_us,
        )
        latest = greater(self._connection, _MODELS.c.last_seen_utc_us, row.excluded.last_seen_utc_us)
        await self._connection.execute(
            row.on_conflict_do_update(
                index_elements=["tenant_id", "name"],
                set_={"twin": row.excluded.twin, "last_seen_utc_us": latest},
            )
        )

    async def all(self, tenant_id: TenantId = DEFAULT_TENANT) -> Sequence[ModelRecord]:
        query = _MODELS.select().where(_MODELS.c.tenant_id == tenant_id).order_by(_MODELS.c.name)
        return [ModelRecord(*row) for row in await self._connection.execute(query)]

    async def forget(self, name: str, *, tenant_id: TenantId = DEFAULT_TENANT) -> bool:
        """Requests for it are answered 'not found' from now on; False when it was not known."""
        done = await self._connection.execute(
            _MODELS.delete().where(_MODELS.c.tenant_id == tenant_id, _MODELS.c.name == name)
        )
        return done.rowcount == 1
