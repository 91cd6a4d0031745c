"""A database as lines of JSON: the same from both kinds, into both kinds, and nothing else is accepted."""

import io

import pytest

from panal.core.errors import SettingsError, StoreError
from panal.store import open_store
from panal.store.dump import check_dump, dump, load
from panal.store.migrate import MIGRATIONS
from tests.integration.test_pains_migrations import content, first_database
from tests.support.databases import KINDS, fresh_url
from tests.support.rows import principal_row


@pytest.fixture(params=KINDS)
async def source(request, tmp_path):
    async with fresh_url(request.param, tmp_path, migrated=False) as url:
        yield url


@pytest.fixture(params=KINDS)
async def target(request, tmp_path):
    async with fresh_url(request.param, tmp_path, migrated=False) as url:
        yield url


async def lines_of(url: str) -> list[bytes]:
    file = io.BytesIO()
    await dump(url, file)
    return file.getvalue().splitlines(keepends=True)


async def test_a_dump_of_either_kind_fills_a_database_of_either_kind(source, target):
    before = await first_database(source)
    await (await open_store(source)).close()
    await load(target, await lines_of(source))
    after = await content(target)
    assert before.keys() - {"alembic_version"} <= after.keys()
    wanted = await content(source)
    for name, rows in wanted.items():
        assert sorted(after[name], key=repr) == sorted(rows, key=repr), name
    assert await lines_of(target) == await lines_of(source)
    store = await open_store(target)
    async with store.reading() as tx:
        assert len(await tx.nodes.list("tnt_default")) == len(wanted["nodes"])
    await store.close()


async def test_a_database_with_content_is_left_alone(source):
    await first_database(source)
    before = await content(source)
    with pytest.raises(SettingsError, match="not empty"):
        await load(source, await lines_of(source))
    assert await content(source) == before


async def test_damaged_lines_leave_nothing_behind(source, target):
    await (await open_store(source)).close()
    whole = await lines_of(source)
    newest = f'"revision":"{MIGRATIONS.revisions[-1]}"'.encode()
    newer = whole[0].replace(newest, b'"revision":"9999"')
    for lines in (
        [],
        [b"{}"],
        [*whole, b"half a li"],
        [*whole, b'["nodes",[1]]'],
        [*whole, b'["x",[]]'],
        [newer],
    ):
        with pytest.raises((SettingsError, StoreError)):
            await load(target, lines)
        assert await content(target) == {}


async def test_the_audit_chain_of_a_dump_is_checked(tmp_path):
    async with fresh_url("sqlite", tmp_path) as url:
        store = await open_store(url)
        async with store.transaction() as tx:
            await tx.principals.add(principal_row())
        from tests.support.audit import append_events

        await append_events(store, 3)
        await store.close()
        lines = await lines_of(url)
    assert check_dump(lines).chain_fault == ""
    assert check_dump(lines).rows["audit_events"] == 3
    event = next(place for place, line in enumerate(lines) if line.startswith(b'["audit_events",[2,'))
    changed = [*lines]
    changed[event] = changed[event].replace(b"node.cordon", b"node.revoke")
    assert "changed" in check_dump(changed).chain_fault
    assert "missing" in check_dump(lines[:event] + lines[event + 1 :]).chain_fault
    assert "newest" in check_dump(lines[: event + 1] + lines[event + 2 :]).chain_fault
