"""Leases: who may do what only one may do. Every change compares the row with what its caller saw."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from panal.core.errors import Conflict
from panal.policy.lease import NOBODY, LeaseRow
from panal.store import tables

_LEASES = tables.leases
CONTROLLER = "controller"


class Leases:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def current(self, name: str = CONTROLLER) -> LeaseRow:
        row = (await self._connection.execute(_LEASES.select().where(_LEASES.c.name == name))).one()
        return LeaseRow(row.holder, row.term, row.beat)

    async def change(self, seen: LeaseRow, wanted: LeaseRow, name: str = CONTROLLER) -> bool:
        """Puts ``wanted`` where ``seen`` is; False when something else is there by now."""
        done = await self._connection.execute(
            _LEASES.update()
            .where(*_is(name, seen))
            .values(holder=wanted.holder, term=wanted.term, beat=wanted.beat)
        )
        return done.rowcount == 1

    async def give_back(self, holder: str, term: int, name: str = CONTROLLER) -> None:
        """Lets others take it at once. Nothing happens where it is another's."""
        await self._connection.execute(_LEASES.update().where(*_of(name, holder, term)).values(holder=NOBODY))

    async def require(self, holder: str, term: int, name: str = CONTROLLER) -> None:
        """Raises Conflict unless this is the holder; until the transaction ends nobody can take it."""
        query = sa.select(_LEASES.c.term).where(*_of(name, holder, term)).with_for_update()
        if (await self._connection.execute(query)).one_or_none() is None:
            raise Conflict("Another process leads by now.")


def _of(name: str, holder: str, term: int) -> tuple[sa.ColumnElement[bool], ...]:
    return _LEASES.c.name == name, _LEASES.c.holder == holder, _LEASES.c.term == term


def _is(name: str, row: LeaseRow) -> tuple[sa.ColumnElement[bool], ...]:
    return *_of(name, row.holder, row.term), _LEASES.c.beat == row.beat
