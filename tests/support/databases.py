"""A fresh, migrated database for every test, copied from one that was migrated once in the session."""

import asyncio
import atexit
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from panal.store import Store, open_store

KINDS = [
    pytest.param("sqlite", id="sqlite"),
    pytest.param("postgresql", id="postgresql", marks=pytest.mark.postgres),
]


def server_url() -> str:
    """The PostgreSQL server for tests, or a skip that says how to get one."""
    url = os.environ.get("PANAL_TEST_POSTGRES_URL", "")
    if not url:
        folder = Path(os.environ.get("PANAL_SERVICES", Path(tempfile.gettempdir()) / "panal-services"))
        file = folder / "postgres.url"
        if not file.exists():
            pytest.skip("no PostgreSQL: run scripts/services or set PANAL_TEST_POSTGRES_URL")
        url = file.read_text().strip()
    return url


@asynccontextmanager
async def fresh_url(kind: str, folder: Path, *, migrated: bool = True) -> AsyncIterator[str]:
    """The URL of a database of its own."""
    if kind == "sqlite":
        path = folder / f"{uuid4().hex}.db"
        if migrated:
            shutil.copy(_sqlite_template(), path)
        yield f"sqlite:///{path}"
        return
    server = server_url()
    name = f"panal_{uuid4().hex}"
    template = f' TEMPLATE "{_postgresql_template(server)}"' if migrated else ""
    await _command(server, f'CREATE DATABASE "{name}"{template}')
    try:
        yield database_url(server, name)
    finally:
        await _command(server, f'DROP DATABASE "{name}" WITH (FORCE)')


@asynccontextmanager
async def fresh_store(kind: str, folder: Path) -> AsyncIterator[Store]:
    async with fresh_url(kind, folder) as url:
        store = await open_store(url)
        try:
            yield store
        finally:
            await store.close()


def database_url(server: str, name: str) -> str:
    """The server's URL with another database in it."""
    before, question, options = server.partition("?")
    return f"{before.rpartition('/')[0]}/{name}{question}{options}"


async def _command(server: str, sql: str) -> None:
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


@cache
def _sqlite_template() -> Path:
    path = Path(tempfile.mkdtemp(prefix="panal-template-")) / "panal.db"
    _elsewhere(_migrate(f"sqlite:///{path}"))
    atexit.register(shutil.rmtree, path.parent)
    return path


@cache
def _postgresql_template(server: str) -> str:
    name = f"panal_template_{os.getpid()}_{uuid4().hex[:8]}"
    _elsewhere(_command(server, f'CREATE DATABASE "{name}"'))
    _elsewhere(_migrate(database_url(server, name)))
    atexit.register(lambda: asyncio.run(_command(server, f'DROP DATABASE "{name}"')))
    return name


async def _migrate(url: str) -> None:
    await (await open_store(url)).close()


def _elsewhere(work) -> None:
    """Runs a coroutine to its end in a thread, away from the test's own loop."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()
