"""Writes refusals to the audit log, in the background: no answer waits for it."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from panal.core.clock import Clock
from panal.core.errors import StoreError
from panal.core.ids import IdSource
from panal.identity.refusals import CountedRefusal, RefusalCounts
from panal.store import Store
from panal.telemetry.logs import fields
from panal.telemetry.redaction import harmless

WRITE_EACH_S = 1.0
WAITING_MAX = 500
"""Rows kept while the store is away; the oldest are dropped and counted."""
TOGETHER_MAX = 50

log = logging.getLogger("panal.audit")


class RefusalAudit:
    """One per gateway process; ``run`` it, and call ``close`` at the end."""

    def __init__(self, counts: RefusalCounts, store: Store, ids: IdSource, clock: Clock) -> None:
        self._counts = counts
        self._store = store
        self._ids = ids
        self._clock = clock
        self._waiting: deque[CountedRefusal] = deque()
        self.dropped = 0

    async def run(self) -> None:
        """Write each second what is new, until cancelled."""
        while True:
            await asyncio.sleep(WRITE_EACH_S)
            self._keep(self._counts.due())
            await self.write()

    async def close(self) -> None:
        """Write everything that is known, if the store is there."""
        self._keep(self._counts.close())
        await self.write()

    async def write(self) -> None:
        """Write what waits; a store that is away is asked again the next time."""
        while self._waiting:
            rows = [self._waiting[place] for place in range(min(TOGETHER_MAX, len(self._waiting)))]
            try:
                async with self._store.transaction() as tx:
                    for row in rows:
                        await tx.audit.append(
                            event_id=self._ids.other("evt"),
                            actor=row.refusal.actor,
                            action=row.refusal.action,
                            target=row.refusal.target,
                            now_utc_us=round(row.first_utc_s * 1_000_000),
                            outcome="refused",
                            details=details_of(row),
                        )
            except StoreError as error:
                log.warning(
                    "refusals wait for the store: %s", error.message, extra=fields(action="audit_waits")
                )
                return
            for _row in rows:
                self._waiting.popleft()

    def _keep(self, rows: Sequence[CountedRefusal]) -> None:
        self._waiting.extend(rows)
        if (too_many := len(self._waiting) - WAITING_MAX) > 0:
            for _number in range(too_many):
                self._waiting.popleft()
            self.dropped += too_many
            log.error(
                "refusals were not written to the audit log",
                extra=fields(action="audit_dropped", rows=too_many, rows_in_all=self.dropped),
            )


def details_of(row: CountedRefusal) -> dict[str, str | int | bool]:
    """What the event says beside its own columns; nothing of a key, a token or a body."""
    return {
        "peer": row.refusal.peer,
        "reason": row.refusal.reason,
        "message": harmless(row.refusal.message),
        "count": row.count,
        "last_utc_s": int(row.last_utc_s),
    }
