"""What a gateway does for the store beside its requests: refusals into the audit log, old usage out."""

from collections.abc import Coroutine
from typing import Any

from panal.core.clock import Clock
from panal.core.ids import IdSource
from panal.identity.refusals import RefusalCounts
from panal.management.refusals import RefusalAudit
from panal.management.retention import UsageRetention
from panal.store import Store


class Upkeep:
    """``refusals`` takes what was refused; run ``tasks``, and ``close`` at the end."""

    def __init__(self, store: Store, ids: IdSource, clock: Clock, usage_keep_days: int) -> None:
        self.refusals = RefusalCounts(clock)
        self._audit = RefusalAudit(self.refusals, store, ids, clock)
        self._retention = UsageRetention(store, ids, clock)
        self._usage_keep_days = usage_keep_days

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self._audit.run(), self._retention.keep(self._usage_keep_days)]

    async def close(self) -> None:
        """Write what is known and not written yet."""
        await self._audit.close()
