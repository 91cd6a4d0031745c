"""P39: old usage goes in pages, on both databases; nobody waits for longer than a page."""

import asyncio
import os
import time
import tracemalloc
from pathlib import Path

import pytest
import sqlalchemy as sa

from panal.core.clock import ManualClock
from panal.core.ids import DEFAULT_TENANT, IdSource, RequestId, TenantId
from panal.management.retention import DAY_US, UsageRetention
from panal.store import Store, tables
from tests.support.databases import KINDS, fresh_store
from tests.support.rows import NOW_US, contribution_row, usage_row

ROWS = int(os.environ.get("RETENTION_ROWS", "200000"))
OLD_US = NOW_US - 400 * DAY_US
MEMORY_BYTES_MAX = 16 * 1024 * 1024
WAIT_S_MAX = 10.0
"""A page of 500 takes milliseconds; this bound is for a machine that others use too."""


def retention(store: Store) -> UsageRetention:
    clock = ManualClock(utc_seconds=NOW_US / 1_000_000)
    return UsageRetention(store, IdSource(clock, os.urandom), clock)


async def fill(store: Store, count: int) -> None:
    """Old records and their contributions, made by the database itself."""
    numbers = (
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        if store._engine.dialect.name == "sqlite"
        else f"WITH n(i) AS (SELECT generate_series(1, {count}))"
    )
    await store.add_usage([usage_row(0, created_utc_us=OLD_US - 1)], [contribution_row(0)])
    for table, changed in (
        (tables.usage_records, {"created_utc_us": f"{OLD_US} - i"}),
        (tables.contributions, {"created_utc_us": f"{OLD_US} - i"}),
    ):
        names = [column.name for column in table.c]
        values = [{"request_id": "'req_old_' || i", **changed}.get(name, f"t.{name}") for name in names]
        template = f"(SELECT * FROM {table.name} LIMIT 1) AS t"
        insert = f"INSERT INTO {table.name} ({', '.join(names)})"
        select = f"SELECT {', '.join(values)} FROM n, {template}"
        sqlite = store._engine.dialect.name == "sqlite"
        async with store._engine.begin() as connection:
            text = f"{insert} {numbers} {select}" if sqlite else f"{numbers} {insert} {select}"
            await connection.execute(sa.text(text))


async def left(store: Store) -> tuple[int, int]:
    """Records and contributions."""
    async with store._engine.connect() as connection:
        count = [
            (await connection.execute(sa.select(sa.func.count()).select_from(table))).scalar_one()
            for table in (tables.usage_records, tables.contributions)
        ]
    return count[0], count[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(120 + ROWS // 1000)
async def test_p39_retention_runs_in_pages(kind: str, tmp_path: Path) -> None:
    """Meanwhile the drain writes, and finds its turn after each page."""
    async with fresh_store(kind, tmp_path) as store:
        await fill(store, ROWS)
        before = (await left(store))[0]
        waits_s: list[float] = []
        done = asyncio.Event()

        async def drain() -> int:
            written = 0
            while not done.is_set():
                begun_s = time.monotonic()
                row = usage_row(written + 1, request_id=RequestId(f"req_new_{written}"))
                await store.add_usage([row], [])
                waits_s.append(time.monotonic() - begun_s)
                written += 1
                await asyncio.sleep(0.01)
            return written

        draining = asyncio.create_task(drain())
        tracemalloc.start()
        begun_s = time.monotonic()
        removed = await retention(store).prune_all(NOW_US - 300 * DAY_US)
        seconds = time.monotonic() - begun_s
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        done.set()
        written = await draining
        assert removed == before == ROWS + 1
        assert await left(store) == (written, 0)
        assert written >= min(20, ROWS // 2000)
        assert max(waits_s) < WAIT_S_MAX
        assert peak_bytes < MEMORY_BYTES_MAX
        async with store.reading() as tx:
            assert (await tx.audit.verify()).events == 1
        print(
            f"\n{kind}: {removed} records in {seconds:.1f} s, {peak_bytes / 1e6:.1f} MB of memory at most; "
            f"{written} writes meanwhile, the longest waited {max(waits_s):.3f} s"
        )


@pytest.mark.parametrize("kind", KINDS)
async def test_only_what_is_older_goes_of_every_tenant_and_what_is_stopped_leaves_whole_pages(
    kind: str, tmp_path: Path
) -> None:
    async with fresh_store(kind, tmp_path) as store:
        rows = [
            usage_row(
                number,
                request_id=RequestId(f"req_{number:05d}"),
                tenant_id=TenantId("tnt_other") if number % 2 else DEFAULT_TENANT,
                created_utc_us=OLD_US + number,
            )
            for number in range(2400)
        ]
        made = [contribution_row(0, request_id=row.request_id) for row in rows]
        for at in range(0, 2400, 400):
            await store.add_usage(rows[at : at + 400], made[at : at + 400])
        one = retention(store)
        async for _count in one.pages(DEFAULT_TENANT, OLD_US + 2000, None):
            break
        assert await left(store) == (1900, 1900)
        assert await one.prune_all(OLD_US + 2000) == 1500
        assert await left(store) == (400, 400)
        async with store.reading() as tx:
            assert await tx.usage.count_before(DEFAULT_TENANT, OLD_US + 2000) == 0
            assert await tx.usage.count_before(DEFAULT_TENANT, OLD_US + 2001) == 1
        assert await one.prune_all(OLD_US + 2000) == 0
