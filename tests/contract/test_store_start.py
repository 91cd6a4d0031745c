"""Opening a database: new, old, newer, unwritable, by several at once, and killed on the way."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from panal.core.errors import SettingsError, StoreError
from panal.core.nodes import Membership
from panal.store import migrate, open_store, tables
from panal.store.database import make_engine
from tests.support.databases import KINDS, database_url, fresh_url
from tests.support.rows import NOW_US, key_row, node_row, principal_row, token_row, usage_row

KILLED = """
import asyncio, os, signal, sys
import alembic.op
from panal.store import open_store
whole = alembic.op.create_table
def create_table(name, *args, **options):
    whole(name, *args, **options)
    if name == "nodes":
        os.kill(os.getpid(), signal.SIGKILL)
alembic.op.create_table = create_table
asyncio.run(open_store(sys.argv[1]))
"""


@pytest.fixture(params=KINDS)
async def empty_url(request, tmp_path):
    async with fresh_url(request.param, tmp_path, migrated=False) as url:
        yield url


@pytest.fixture(params=KINDS)
async def url(request, tmp_path):
    async with fresh_url(request.param, tmp_path) as url:
        yield url


async def _shape(url: str) -> list[str]:
    engine = make_engine(url, 1)
    async with engine.connect() as connection:
        names = await connection.run_sync(lambda bare: sa.inspect(bare).get_table_names())
    await engine.dispose()
    return sorted(names)


async def test_migrations_make_exactly_the_tables_that_queries_expect(url):
    def differences(bare: sa.Connection) -> list[object]:
        context = MigrationContext.configure(bare, opts={"compare_type": True})
        return compare_metadata(context, tables.metadata)

    engine = make_engine(url, 1)
    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await engine.dispose()


def test_the_known_revisions_are_those_of_the_files():
    config = Config()
    config.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations"))
    revisions = ScriptDirectory.from_config(config).walk_revisions()
    assert tuple(script.revision for script in revisions)[::-1] == migrate.MIGRATIONS.revisions


async def test_there_is_a_default_tenant_with_a_project(url):
    engine = make_engine(url, 1)
    async with engine.connect() as connection:
        assert (await connection.execute(tables.tenants.select())).all() == [("tnt_default", "default", 0)]
        project = (await connection.execute(tables.projects.select())).one()
    await engine.dispose()
    assert (project.project_id, project.tenant_id) == ("prj_default", "tnt_default")


async def test_rows_in_every_state_and_every_decision_survive_a_restart(url):
    store = await open_store(url)
    async with store.transaction() as tx:
        await tx.principals.add(principal_row())
        await tx.api_keys.add(key_row(1, revoked_utc_us=NOW_US, residency=frozenset(), name=""))
        await tx.join_tokens.add(token_row(1, uses_left=0, revoked_utc_us=NOW_US))
        for number, membership in enumerate(Membership, start=1):
            await tx.nodes.admit(node_row(number, membership=membership, name=f"n{number}"))
        await tx.usage.add([usage_row(1, first_token_us=None)])
    await store.close()
    store = await open_store(url)
    async with store.reading() as tx:
        nodes = await tx.nodes.list("tnt_default")
        assert [node.membership for node in nodes] == list(Membership)
        assert await tx.usage.list("tnt_default") == [usage_row(1, first_token_us=None)]
        assert (await tx.api_keys.list("tnt_default"))[0].revoked_utc_us == NOW_US
    await store.close()


async def test_a_newer_database_is_refused_and_left_as_it_is(url):
    store = await open_store(url)
    async with store._engine.begin() as connection:
        await connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    await store.close()
    before = await _shape(url)
    with pytest.raises(SettingsError, match="newer panal"):
        await open_store(url)
    assert await _shape(url) == before


async def test_several_programs_may_open_a_new_database_at_once(empty_url):
    stores = await asyncio.gather(*(open_store(empty_url) for _ in range(5)))
    for store in stores:
        await store.ping()
        await store.close()
    assert "nodes" in await _shape(empty_url)


async def test_a_kill_in_the_middle_of_a_migration_leaves_nothing_half_done(empty_url):
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, empty_url], check=False, capture_output=True, timeout=60
    )
    assert killed.returncode == -9, killed.stderr.decode()
    assert await _shape(empty_url) == []
    store = await open_store(empty_url)
    await store.ping()
    await store.close()


@pytest.mark.parametrize(
    "url", ["", "mysql://x/y", "sqlite://", "sqlite:///", "sqlite:///:memory:", "file.db"]
)
async def test_another_kind_of_url_stops_the_start(url):
    with pytest.raises(SettingsError):
        await open_store(url)


async def test_a_place_that_cannot_be_written_stops_the_start_with_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be written"):
        await open_store(f"sqlite:///{tmp_path}/file/panal.db")


async def test_a_file_that_is_no_database_is_not_touched(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("These are my notes and no database at all. " * 100)
    before = path.read_bytes()
    with pytest.raises(SettingsError, match="SQLITE_NOTADB"):
        await open_store(f"sqlite:///{path}")
    assert path.read_bytes() == before


async def test_the_database_file_is_for_its_owner_only(tmp_path):
    store = await open_store(f"sqlite:///{tmp_path}/deeper/panal.db")
    await store.close()
    assert (tmp_path / "deeper" / "panal.db").stat().st_mode & 0o077 == 0


async def test_a_server_that_is_not_there_is_a_store_error_without_its_password():
    with pytest.raises(StoreError) as caught:
        await open_store("postgresql://panal:hunter2@127.0.0.1:9/panal")
    assert "hunter2" not in caught.value.message
    assert "cannot be reached" in caught.value.message


@pytest.mark.postgres
async def test_a_server_that_refuses_for_good_stops_the_start_and_one_that_is_away_does_not(tmp_path):
    async with fresh_url("postgresql", tmp_path) as url:
        missing = database_url(url, "no_such_panal")
        with pytest.raises(SettingsError, match="InvalidCatalogNameError"):
            await open_store(missing)
        stranger = url.replace("://panal@", "://no_such_panal@", 1)
        with pytest.raises(SettingsError, match=r"gateway\.store_url"):
            await open_store(stranger)
    for away in ("postgresql://127.0.0.1:1/x", "postgresql://panal.invalid/x"):
        with pytest.raises(StoreError) as caught:
            await open_store(away)
        assert not caught.value.lasting
    with pytest.raises(SettingsError):
        await open_store("postgresql://127.0.0.1:port/x")
