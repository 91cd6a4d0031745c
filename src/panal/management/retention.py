"""Old usage records go, page by page: no transaction is long, nothing is read into memory.

Between two pages every other writer has its turn, the usage drain among them. Stopped at any moment, what is
gone is gone and the rest is as it was.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator

from panal.core.clock import Clock
from panal.core.errors import StoreError
from panal.core.ids import IdSource, TenantId
from panal.core.principals import Principal
from panal.core.records import utc_us
from panal.store import Store
from panal.telemetry.logs import fields

PAGE_RECORDS = 500
PAUSE_S = 0.005
"""After each page, so that writers of other processes find the database free as well."""
LOOK_EACH_S = 3600.0
DAY_US = 86_400_000_000

log = logging.getLogger("panal.usage")


class UsageRetention:
    """Removes records, by hand for one tenant or by the setting for all."""

    def __init__(self, store: Store, ids: IdSource, clock: Clock) -> None:
        self._store = store
        self._ids = ids
        self._clock = clock

    async def pages(
        self, tenant_id: TenantId, before_utc_us: int, actor: Principal | None
    ) -> AsyncGenerator[int]:
        """Remove the tenant's records of before that moment; gives the number of each page.

        The first page's transaction also writes the audit event. Raises StoreError.
        """
        first, since_utc_us = True, 0
        while True:
            async with self._store.transaction() as tx:
                removed, since_utc_us = await tx.usage.remove_page(
                    tenant_id, before_utc_us, since_utc_us, PAGE_RECORDS
                )
                if first and removed:
                    await tx.audit.append(
                        event_id=self._ids.other("evt"),
                        actor=actor,
                        action="usage.prune",
                        target=tenant_id,
                        now_utc_us=utc_us(self._clock),
                        details={"before_utc_s": before_utc_us // 1_000_000},
                    )
            first = False
            if removed:
                yield removed
            if removed < PAGE_RECORDS:
                return
            await asyncio.sleep(PAUSE_S)

    async def keep(self, days: int) -> None:
        """Each hour, remove what is older than ``days``, until cancelled. 0: remove nothing."""
        while days:
            try:
                await self.prune_all(utc_us(self._clock) - days * DAY_US)
            except StoreError as error:
                log.warning(
                    "old usage is not removed now: %s", error.message, extra=fields(action="prune_waits")
                )
            await asyncio.sleep(LOOK_EACH_S)

    async def prune_all(self, before_utc_us: int) -> int:
        """Remove older records of every tenant; gives how many. Raises StoreError."""
        removed, tenant = 0, TenantId("")
        while True:
            async with self._store.reading() as tx:
                following = await tx.usage.tenant_after(tenant)
            if following is None:
                break
            tenant = following
            async for count in self.pages(tenant, before_utc_us, None):
                removed += count
        if removed:
            log.info("old usage removed", extra=fields(action="usage_pruned", records=removed))
        return removed
