"""Engines for SQLite and PostgreSQL, and the one place where a driver's error becomes a StoreError."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from panal.core.errors import BadRequest, Conflict, SettingsError, StoreError

BUSY_MS_MAX = 5_000
CONNECT_S_MAX = 5.0
STATEMENT_S_MAX = 30.0
POOL_WAIT_S_MAX = 5.0

_POSTGRESQL = ("postgresql://", "postgres://", "postgresql+asyncpg://")
_SQLITE = ("sqlite:///", "sqlite+aiosqlite:///")


_LASTING_POSTGRESQL = ("28", "3D", "3F", "42")
"""Classes of SQLSTATE: login refused; no such database; no such schema; no right, or not our tables."""
_LASTING_SQLITE = ("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")


def make_engine(url: str, connections_max: int) -> AsyncEngine:
    """An engine that has not connected yet. Raises SettingsError for a URL of another kind.

    ``url`` is ``sqlite:////absolute/path``, ``sqlite:///relative/path`` or a libpq URL ``postgresql://...``
    """
    for prefix in _SQLITE:
        if url.startswith(prefix):
            return _sqlite_engine(url.removeprefix(prefix), connections_max)
    if url.startswith(_POSTGRESQL):
        return _postgresql_engine("postgresql://" + url.split("://", 1)[1], connections_max)
    raise SettingsError("The store's URL must begin with sqlite:/// or postgresql:// .")


def _sqlite_engine(path: str, connections_max: int) -> AsyncEngine:
    if path in ("", ":memory:"):
        raise SettingsError("The store needs a file: sqlite:////path/to/panal.db .")
    engine = create_async_engine(
        sa.URL.create("sqlite+aiosqlite", database=path),
        hide_parameters=True,
        pool_size=connections_max,
        max_overflow=0,
        pool_timeout=POOL_WAIT_S_MAX,
        connect_args={"timeout": BUSY_MS_MAX / 1000, "isolation_level": None},
    )
    sa.event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    sa.event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={BUSY_MS_MAX}",
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "secure_delete=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    """Writers take the lock at once: a reader that turns writer could not wait for it."""
    options = connection.get_execution_options()
    if options.get("panal_migrates", False):  # has no effect inside a transaction
        connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
    connection.exec_driver_sql("BEGIN" if options.get("panal_reads", False) else "BEGIN IMMEDIATE")


def _postgresql_engine(dsn: str, connections_max: int) -> AsyncEngine:
    async def connect() -> Any:
        try:
            return await asyncpg.connect(
                dsn,
                timeout=CONNECT_S_MAX,
                command_timeout=STATEMENT_S_MAX,
                server_settings={"application_name": "panal"},
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError, ValueError) as error:
            # Nothing is referred to: what drivers say can hold the URL with its password.
            words = f"PostgreSQL cannot be reached ({type(error).__name__})."
            raise StoreError(words, lasting=_lasts(error) or isinstance(error, ValueError)) from None

    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        hide_parameters=True,
        pool_size=connections_max,
        max_overflow=0,
        pool_timeout=POOL_WAIT_S_MAX,
        pool_pre_ping=True,
    )


def check_place(engine: AsyncEngine) -> None:
    """For SQLite: the folder is made, or SettingsError says why the file cannot be there."""
    if engine.dialect.name != "sqlite":
        return
    path = Path(str(engine.url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise SettingsError(f"The database {path} cannot be written ({error.strerror}).") from None


@contextmanager
def store_errors() -> Iterator[None]:
    """Turns what SQLAlchemy, the drivers and the network raise into StoreError, Conflict or BadRequest.

    The message names the driver's error class only: texts of drivers can hold values of rows.
    """
    try:
        yield
    except sa.exc.IntegrityError as error:
        raise Conflict("That is already there, or something it needs is not.") from error
    except sa.exc.SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        if isinstance(error, sa.exc.DataError) or str(getattr(cause, "sqlstate", "")).startswith("22"):
            raise BadRequest("A value cannot be stored: it is too long, or holds forbidden marks.") from error
        words = f"The database cannot be used: {_plain(cause)}."
        raise StoreError(words, lasting=_lasts(cause)) from error
    except OverflowError as error:
        raise BadRequest("A value cannot be stored: the number is too large.") from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, sqlite3.Error, OSError, TimeoutError) as error:
        words = f"The database cannot be used: {_plain(error)}."
        raise StoreError(words, lasting=_lasts(error)) from error


def _lasts(error: BaseException) -> bool:
    """Whether the database would refuse in just the same way later."""
    state = str(getattr(error, "sqlstate", None) or "")
    name = str(getattr(error, "sqlite_errorname", None) or "")
    return state.startswith(_LASTING_POSTGRESQL) or name.startswith(_LASTING_SQLITE)


def _plain(error: BaseException) -> str:
    if isinstance(error, sqlite3.Error):
        return f"SQLite says {getattr(error, 'sqlite_errorname', type(error).__name__)}"
    return type(error).__name__
