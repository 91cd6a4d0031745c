"""Audit events for tests."""

from panal.core.ids import DEFAULT_PROJECT, DEFAULT_TENANT, ApiKeyId
from panal.core.nodes import DataClass
from panal.core.principals import Principal, Role
from panal.store import Store
from tests.support.rows import NOW_US, OWNER


async def append_events(store: Store, count: int) -> None:
    actor = Principal(
        principal_id=OWNER,
        tenant_id=DEFAULT_TENANT,
        project_id=DEFAULT_PROJECT,
        key_id=ApiKeyId("key_0001"),
        role=Role.ADMIN,
        data_class=DataClass.INTERNAL,
        residency=frozenset(),
    )
    for number in range(count):
        async with store.transaction() as tx:
            await tx.audit.append(
                event_id=f"evt_{number}",
                actor=actor,
                action="node.cordon",
                target="node_1",
                now_utc_us=NOW_US,
            )
