"""Brings a database to the shape of this program, or refuses to touch it.

All migrations run in one transaction under a lock, so that a kill in the middle leaves the old shape
whole, and several gateways may start at once. Alembic is loaded only when there is work to do.
"""

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from panal.core.errors import SettingsError

REVISIONS = ("0001", "0002")
"""All revisions that this program knows, oldest first. A test holds it equal to the files."""

_LOCK = 0x70616E616C
_FOLDER = Path(__file__).parent / "migrations"


async def migrate(connection: AsyncConnection) -> None:
    """Runs inside the caller's write transaction. Raises SettingsError when the database is newer."""
    if connection.dialect.name == "postgresql":
        await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    present = await connection.run_sync(_revision)
    if present == REVISIONS[-1]:
        return
    if present is not None and present not in REVISIONS:
        raise SettingsError(
            f"The database was written by a newer panal (its shape is '{present}', this program knows up to "
            f"'{REVISIONS[-1]}'). It was left as it is: start the newer program, or restore a copy."
        )
    await connection.run_sync(_upgrade)


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return found


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
