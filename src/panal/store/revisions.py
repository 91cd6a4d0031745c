"""Counters that rise with every change of a kind, so that others read a table only when it changed."""

from typing import Literal

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from panal.store import tables

Kind = Literal["keys", "nodes", "bootstrap", "limits", "names"]


class Revisions:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def current(self, kind: Kind) -> int:
        query = sa.select(tables.revisions.c.number).where(tables.revisions.c.name == kind)
        return int((await self._connection.execute(query)).scalar_one())

    async def advance(self, kind: Kind) -> int:
        """The new number. Other transactions that advance the same kind wait until this one ends."""
        rows = tables.revisions
        await self._connection.execute(
            rows.update().where(rows.c.name == kind).values(number=rows.c.number + 1)
        )
        return await self.current(kind)
