"""A database as lines of JSON, and back: the same from SQLite and PostgreSQL, into either.

The first line is ``{"revision": ..., "tables": {name: [columns]}}``, each other one ``[table, [values]]``;
bytes are ``{"base64": ...}``. Tables stand in an order in which they can be filled.
"""

import base64
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa

from panal.core.errors import SettingsError
from panal.store.audit import FIRST_HASH, AuditEvent, fault_of
from panal.store.database import check_place, make_engine, store_errors
from panal.store.migrate import MIGRATIONS, Migrations, migrate, revision_of

ROWS_AT_ONCE = 500
LINE_BYTES_MAX = 16 * 1024 * 1024


@dataclass
class DumpState:
    """What a dump holds. ``chain_fault`` says what is wrong with its audit chain; empty: it is whole."""

    revision: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    chain_fault: str = ""


async def dump(url: str, file: IO[bytes]) -> DumpState:
    """Write one state of the whole database. Raises SettingsError, StoreError, OSError."""
    engine = make_engine(url, 1)
    options: dict[str, Any] = {"panal_reads": True}
    if engine.dialect.name == "postgresql":
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    elif not Path(str(engine.url.database)).exists():
        raise SettingsError(f"There is no database at {engine.url.database}.")
    try:
        with store_errors():
            async with engine.execution_options(**options).connect() as connection:
                revision = await revision_of(connection)
                if revision is None or revision not in MIGRATIONS.revisions:
                    raise SettingsError(f"This panal does not know the database's shape '{revision}'.")
                return await connection.run_sync(_write, revision, file)
    finally:
        await engine.dispose()


def _tables(connection: sa.Connection) -> list[sa.Table]:
    found = sa.MetaData()
    found.reflect(connection)
    return [table for table in found.sorted_tables if table.name != "alembic_version"]


def _write(connection: sa.Connection, revision: str, file: IO[bytes]) -> DumpState:
    state = DumpState(revision)
    tables = _tables(connection)
    head = {"revision": revision, "tables": {table.name: list(table.columns.keys()) for table in tables}}
    file.write(_line(head))
    for table in tables:
        count = 0
        query = table.select().order_by(*table.primary_key.columns).execution_options(yield_per=ROWS_AT_ONCE)
        for row in connection.execute(query):
            file.write(_line([table.name, [_plain(value) for value in row]]))
            count += 1
        state.rows[table.name] = count
    return state


def check_dump(lines: Iterable[bytes]) -> DumpState:
    """Read a dump through: its rows counted, its audit chain verified. Raises SettingsError if damaged."""
    columns, revision, rows = _opened(lines)
    state = DumpState(revision, dict.fromkeys(columns, 0))
    last = (0, FIRST_HASH)
    head: dict[str, Any] = {}
    for table, values in rows:
        state.rows[table] += 1
        row = dict(zip(columns[table], values, strict=True))
        if table == "audit_head":
            head = row
        if table == "audit_events" and not state.chain_fault:
            event = AuditEvent(**row)
            state.chain_fault = fault_of(event, *last)
            last = (event.sequence, event.hash)
    if not state.chain_fault and (head.get("sequence"), head.get("hash")) != last:
        state.chain_fault = "the newest events are missing"
    return state


async def load(url: str, lines: Iterable[bytes]) -> None:
    """Fill a database that is not there yet, in one transaction, and bring it to this program's shape.

    Raises SettingsError when there is content already or the lines are damaged, StoreError.
    """
    columns, revision, rows = _opened(lines)
    known = MIGRATIONS.revisions
    if revision not in known:
        raise SettingsError(f"The backup was made by a newer panal (its database has shape '{revision}').")
    at_that_time = Migrations(known[: known.index(revision) + 1], MIGRATIONS.folders)
    engine = make_engine(url, 1)
    try:
        check_place(engine)
        with store_errors():
            async with engine.execution_options(panal_migrates=True).begin() as connection:
                if await revision_of(connection) is not None:
                    raise SettingsError(
                        "The database is not empty; a backup is restored into a new one only."
                    )
                await migrate(connection, at_that_time)
                await connection.run_sync(_fill, columns, rows)
                await migrate(connection)
    finally:
        await engine.dispose()


def _fill(
    connection: sa.Connection, columns: dict[str, list[str]], rows: Iterator[tuple[str, list[Any]]]
) -> None:
    tables = {table.name: table for table in _tables(connection)}
    if columns.keys() != tables.keys():
        raise SettingsError("The backup does not hold the tables that its shape calls for.")
    for table in reversed(tables.values()):  # what migrations put there is in the backup too
        connection.execute(table.delete())
    for name, group in itertools.groupby(rows, key=lambda row: row[0]):
        while some := list(itertools.islice(group, ROWS_AT_ONCE)):
            filled = [dict(zip(columns[name], values, strict=True)) for _name, values in some]
            connection.execute(tables[name].insert(), filled)


def _opened(lines: Iterable[bytes]) -> tuple[dict[str, list[str]], str, Iterator[tuple[str, list[Any]]]]:
    """Columns by table, revision, and the rows."""
    given = iter(lines)
    try:
        head = json.loads(next(given))
        columns = {str(name): [str(each) for each in names] for name, names in head["tables"].items()}
        return columns, str(head["revision"]), _rows(given, columns)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        raise _damaged() from None


def _rows(lines: Iterator[bytes], columns: dict[str, list[str]]) -> Iterator[tuple[str, list[Any]]]:
    for line in lines:
        try:
            table, values = json.loads(line)
            row = [_value(value) for value in values]
            whole = len(row) == len(columns[table])
        except (ValueError, KeyError, TypeError):
            raise _damaged() from None
        if not whole:
            raise _damaged()
        yield table, row


def _damaged() -> SettingsError:
    return SettingsError("The database in the backup is damaged.")


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _plain(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _value(value: Any) -> Any:
    return base64.b64decode(value["base64"], validate=True) if isinstance(value, dict) else value
