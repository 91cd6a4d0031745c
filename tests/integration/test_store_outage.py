"""While the database is away the store says so in bounded time, and works again afterwards."""

import asyncio
import sqlite3

import pytest
import sqlalchemy as sa

from panal.core.errors import Conflict, StoreError
from panal.store import database, open_store
from tests.support.databases import KINDS, fresh_store, fresh_url
from tests.support.rows import key_row, principal_row, usage_row


async def test_a_locked_sqlite_file_is_a_store_error_and_reading_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_MS_MAX", 50)
    async with fresh_url("sqlite", tmp_path) as url:
        store = await open_store(url)
        other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="SQLITE_BUSY"):
            await store.add_usage([usage_row()], [])
        assert await store.keys_revision() == 0
        other.execute("ROLLBACK")
        other.close()
        await store.add_usage([usage_row()], [])
        await store.close()


@pytest.mark.postgres
async def test_broken_connections_are_a_store_error_once_and_then_replaced(tmp_path):
    async with fresh_store("postgresql", tmp_path) as store:
        await store.ping()
        with pytest.raises(StoreError):
            async with store.transaction() as tx:
                await tx.revisions.advance("keys")
                async with store._engine.connect() as other:
                    await other.execute(
                        sa.text(
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                        )
                    )
                await tx.revisions.advance("keys")
        async with asyncio.timeout(20):
            while True:
                try:
                    await store.ping()
                    break
                except StoreError:
                    continue
        assert await store.keys_revision() == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_waiting_for_a_connection_has_an_end(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(database, "POOL_WAIT_S_MAX", 0.05)
    async with fresh_url(kind, tmp_path) as url:
        store = await open_store(url, connections_max=1)
        async with store.reading():
            with pytest.raises(StoreError, match="TimeoutError"):
                await store.ping()
        await store.ping()
        await store.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_errors_of_the_store_hold_no_values_of_rows(tmp_path, kind):
    async with fresh_store(kind, tmp_path) as store:
        async with store.transaction() as tx:
            await tx.principals.add(principal_row())
            await tx.api_keys.add(key_row(name="canary-name"))
        with pytest.raises(Conflict) as caught:
            async with store.transaction() as tx:
                await tx.api_keys.add(key_row(name="canary-name"))
    assert "canary" not in caught.value.message
    assert "canary" not in str(caught.value.__cause__)
