"""The few things that SQLite and PostgreSQL both can, but SQLAlchemy spells differently."""

from collections.abc import AsyncIterator, Sequence
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

PAGE_ROWS_MAX = 1000

LOOP_ROWS = 100
"""How many rows are taken over before the event loop gets its turn."""


def insert_or_ignore(connection: AsyncConnection, table: sa.Table) -> Any:
    """INSERT that leaves a row alone which is already there under any unique key."""
    return insert(connection, table).on_conflict_do_nothing()


def insert(connection: AsyncConnection, table: sa.Table) -> Any:
    """The dialect's own INSERT, which has ``on_conflict_do_update``."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


async def pages(
    connection: AsyncConnection, query: sa.Select[Any], order: sa.ColumnElement[str]
) -> AsyncIterator[Sequence[sa.Row[Any]]]:
    """All rows, in short pages by a unique column: thousands of rows must not hold up a gateway's loop."""
    query = query.order_by(order).limit(LOOP_ROWS)
    place = [column.name for column in query.selected_columns].index(order.key or "")
    after = ""
    while True:
        page = (await connection.execute(query.where(order > after))).all()
        if page:
            yield page
        if len(page) < LOOP_ROWS:
            return
        after = page[-1][place]


async def write_records(connection: AsyncConnection, statement: Any, records: Sequence[object]) -> None:
    """Runs an INSERT for many records whose attributes are called like its parameters.

    The driver gets the records' values as they are (whole numbers, text, truth values), which costs a
    third of what SQLAlchemy's own preparation of each row does.
    """
    compiled = statement.compile(dialect=connection.dialect)
    values_of = attrgetter(*compiled.positiontup)
    await connection.exec_driver_sql(str(compiled), [values_of(record) for record in records])


def greater(connection: AsyncConnection, first: Any, second: Any) -> Any:
    """The greater of two numbers within one row."""
    if connection.dialect.name == "postgresql":
        return sa.func.greatest(first, second)
    return sa.func.max(first, second)


def residency_text(residency: frozenset[str]) -> str:
    return ",".join(sorted(residency))


def residency_set(text: str) -> frozenset[str]:
    return frozenset(part for part in text.split(",") if part)


def names_text(names: frozenset[str]) -> str:
    """Names of models, one a line; they hold no line's end, since they can be printed."""
    return "\n".join(sorted(names))


def names_set(text: str) -> frozenset[str]:
    return frozenset(part for part in text.split("\n") if part)


def checked_page(limit: int) -> int:
    """A page's length within its bound."""
    return max(1, min(limit, PAGE_ROWS_MAX))
