"""Brings a database to the shape of this program, or refuses to touch it.

All migrations run in one transaction under a lock, so that a kill in the middle leaves the old shape
whole, and several gateways may start at once. Alembic is loaded only when there is work to do.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from panal.core.errors import SettingsError, StoreError

_LOCK = 0x70616E616C
_FOLDER = Path(__file__).parent / "migrations"


@dataclass(frozen=True)
class Migrations:
    """``revisions``: all that this program knows, oldest first; ``folders``: where their files are."""

    revisions: tuple[str, ...]
    folders: tuple[Path, ...]


MIGRATIONS = Migrations(("0001", "0002", "0003", "0004", "0005", "0006", "0007"), (_FOLDER / "versions",))
"""A test holds the revisions equal to the files."""


async def migrate(connection: AsyncConnection, migrations: Migrations = MIGRATIONS) -> None:
    """Runs inside the caller's write transaction. Raises SettingsError when the database is newer.

    On SQLite the caller turned foreign keys off before the transaction, since a table is changed there
    by making it anew; that every reference still holds is checked at the end.
    """
    if connection.dialect.name == "postgresql":
        await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    present = await connection.run_sync(_revision)
    known = migrations.revisions
    if present == known[-1]:
        return
    if present is not None and present not in known:
        raise SettingsError(
            f"The database was written by a newer panal (its shape is '{present}', this program knows up to "
            f"'{known[-1]}'). It was left as it is: start the newer program, or restore a copy."
        )
    await connection.run_sync(_upgrade, migrations)
    if connection.dialect.name == "sqlite":
        lost = (await connection.exec_driver_sql("PRAGMA foreign_key_check")).first()
        if lost is not None:
            words = f"The migration was undone: rows of '{lost[0]}' would refer to nothing."
            raise StoreError(words, lasting=True)


async def revision_of(connection: AsyncConnection) -> str | None:
    """The shape of the database; None when there is none yet."""
    return await connection.run_sync(_revision)


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return found


def _upgrade(connection: sa.Connection, migrations: Migrations) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    places = os.pathsep.join(map(str, migrations.folders))
    config.set_main_option("version_locations", places.replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, migrations.revisions[-1])
