"""P08: a database of the first revision is brought to today's, whenever the program is killed on the way.

What comes after the first revision today is tried as it is; that the trial finds what it must is shown with
two migrations that exist for tests only.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from panal.core.errors import SettingsError
from panal.store import open_store
from panal.store.database import make_engine
from panal.store.migrate import MIGRATIONS, Migrations
from tests.support import first_rows, killed_migrations
from tests.support.databases import KINDS, fresh_url

FIRST = Migrations(MIGRATIONS.revisions[:1], MIGRATIONS.folders)
LATER = Migrations(
    (MIGRATIONS.revisions[0], "t001", "t002"),
    (*MIGRATIONS.folders, Path(first_rows.__file__).parent / "later_migrations"),
)

Content = dict[str, list[dict[str, Any]]]


@pytest.fixture(params=KINDS)
async def empty_url(request, tmp_path):
    async with fresh_url(request.param, tmp_path, migrated=False) as url:
        yield url


async def content(url: str) -> Content:
    """Every row of every table, by table; a table is named only if it is there."""
    engine = make_engine(url, 1)
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(_content)
    finally:
        await engine.dispose()


def _content(connection: sa.Connection) -> Content:
    found = sa.MetaData()
    found.reflect(connection)
    return {
        name: sorted((dict(row) for row in connection.execute(table.select()).mappings()), key=repr)
        for name, table in found.tables.items()
    }


async def first_database(url: str) -> Content:
    """The first revision with a life's rows in it."""
    await (await open_store(url, migrations=FIRST)).close()
    engine = make_engine(url, 1)

    def fill(connection: sa.Connection) -> None:
        found = sa.MetaData()
        found.reflect(connection)
        for name, rows in first_rows.rows().items():
            connection.execute(found.tables[name].insert(), rows)

    async with engine.begin() as connection:
        await connection.run_sync(fill)
    await engine.dispose()
    return await content(url)


def lost(before: Content, after: Content) -> list[str]:
    """What of ``before`` is not in ``after``, column by column; new columns and tables are no loss."""
    faults = []
    for name, rows in before.items():
        if name == "alembic_version":
            continue
        there = after.get(name, [])
        faults += [
            f"{name}: {row}" for row in rows if not any(row.items() <= other.items() for other in there)
        ]
        if len(there) < len(rows):
            faults.append(f"{name}: {len(rows)} rows became {len(there)}")
    return faults


async def killed_everywhere(url: str, migrations: Migrations, before: Content) -> list[str]:
    """Kills a start before each of its statements; the statements. Each kill must leave ``before``."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(killed_migrations.__file__),
        url,
        *migrations.revisions,
        "--",
        *map(str, migrations.folders),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    statements = []
    while True:
        said = json.loads(await process.stdout.readline())
        if not said["killed"]:
            assert said["status"] == 0, said
            break
        statements.append(said["statement"])
        assert await content(url) == before, said["statement"]
        process.stdin.write(b"\n")
    process.stdin.close()
    assert await process.wait() == 0
    return statements


@pytest.mark.timeout(240)
async def test_p08_a_new_database_killed_at_every_statement_starts_afterwards(empty_url):
    statements = await killed_everywhere(empty_url, MIGRATIONS, {})
    assert len(statements) > 15 and statements[-1] == "COMMIT"
    assert (await content(empty_url))["alembic_version"] == [{"version_num": MIGRATIONS.revisions[-1]}]


@pytest.mark.timeout(240)
async def test_p08_the_first_database_killed_at_every_statement_loses_no_row(empty_url):
    before = await first_database(empty_url)
    await killed_everywhere(empty_url, MIGRATIONS, before)
    after = await content(empty_url)
    assert lost(before, after) == []
    assert after["alembic_version"] == [{"version_num": MIGRATIONS.revisions[-1]}]
    store = await open_store(empty_url)
    async with store.reading() as tx:
        nodes = await tx.nodes.list("tnt_default")
        assert [node.membership for node in nodes] == list(first_rows.MEMBERSHIPS)
        assert len(await tx.api_keys.usable()) == 2
    await store.close()


@pytest.mark.timeout(240)
async def test_p08_migrations_that_change_everything_lose_no_row_at_any_kill(empty_url):
    before = await first_database(empty_url)
    statements = await killed_everywhere(empty_url, LATER, before)
    after = await content(empty_url)
    assert lost(before, after) == []
    assert any("nodes" in each and each.startswith(("CREATE TABLE", "ALTER TABLE")) for each in statements)
    assert {row["floor"] for row in after["nodes"]} == {1}
    assert "floors" not in after
    assert after["alembic_version"] == [{"version_num": "t002"}]


async def test_p08_the_older_program_refuses_what_the_later_one_wrote(empty_url):
    await first_database(empty_url)
    await (await open_store(empty_url, migrations=LATER)).close()
    before = await content(empty_url)
    with pytest.raises(SettingsError, match="newer panal"):
        await open_store(empty_url)
    assert await content(empty_url) == before


async def test_p08_a_migration_that_fails_leaves_everything_as_it_was(empty_url, tmp_path):
    before = await first_database(empty_url)
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "f001_fails.py").write_text(
        "from alembic import op\n"
        "revision, down_revision, branch_labels, depends_on = 'f001', '0001', None, None\n"
        "def upgrade():\n"
        "    op.execute('DELETE FROM usage_records')\n"
        "    op.execute('INSERT INTO nowhere VALUES (1)')\n"
    )
    failing = Migrations(("0001", "f001"), (*MIGRATIONS.folders, tmp_path / "later"))
    with pytest.raises(Exception, match="database cannot be used"):
        await open_store(empty_url, migrations=failing)
    assert await content(empty_url) == before


async def test_p08_a_migration_that_leaves_references_to_nothing_is_undone(tmp_path):
    async with fresh_url("sqlite", tmp_path, migrated=False) as url:
        before = await first_database(url)
        (tmp_path / "later").mkdir()
        (tmp_path / "later" / "l001_loses.py").write_text(
            "from alembic import op\n"
            "revision, down_revision, branch_labels, depends_on = 'l001', '0001', None, None\n"
            "def upgrade():\n"
            "    op.execute(\"DELETE FROM nodes WHERE node_id = 'node_1'\")\n"
        )
        losing = Migrations(("0001", "l001"), (*MIGRATIONS.folders, tmp_path / "later"))
        with pytest.raises(Exception, match="would refer to nothing"):
            await open_store(url, migrations=losing)
        assert await content(url) == before
        store = await open_store(url)
        async with store._engine.connect() as connection:
            assert (await connection.exec_driver_sql("PRAGMA foreign_keys")).scalar() == 1
        await store.close()
