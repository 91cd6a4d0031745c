"""A look at a database without changing it: for ``panal doctor`` and before a backup."""

from dataclasses import dataclass
from pathlib import Path

from panal.store.database import make_engine, store_errors
from panal.store.migrate import MIGRATIONS, revision_of


@dataclass(frozen=True, slots=True)
class StoreState:
    """``revision`` None: no database yet. ``known``: this program can use it, perhaps after a migration."""

    kind: str
    revision: str | None
    newest: str
    known: bool


async def inspect_store(url: str) -> StoreState:
    """Raises SettingsError for a URL of another kind, StoreError when the database cannot be read."""
    engine = make_engine(url, 1)
    newest = MIGRATIONS.revisions[-1]
    try:
        if engine.dialect.name == "sqlite" and not Path(str(engine.url.database)).exists():
            return StoreState("sqlite", None, newest, known=True)
        with store_errors():
            async with engine.execution_options(panal_reads=True).connect() as connection:
                revision = await revision_of(connection)
    finally:
        await engine.dispose()
    known = revision is None or revision in MIGRATIONS.revisions
    return StoreState(engine.dialect.name, revision, newest, known)
