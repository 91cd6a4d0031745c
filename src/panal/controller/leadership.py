"""Keeps, takes and gives back the lease by which one process of an installation is its controller."""

import asyncio
import logging

from panal.core.clock import Clock
from panal.core.errors import Conflict, StoreError
from panal.policy.lease import LOOK_EACH_S, RENEW_EACH_S, Move, Tenure, renewed, taken
from panal.store.store import Store, Transaction
from panal.telemetry.logs import fields

log = logging.getLogger("panal.controller")


class Leadership:
    """``holder``: this process's own id, new at each start."""

    def __init__(self, store: Store, holder: str, clock: Clock) -> None:
        self._store = store
        self.holder = holder
        self._clock = clock
        self._tenure = Tenure(holder)
        self._renewed_s = float("-inf")
        self._led: int | None = None
        self._over = False

    def term(self) -> int | None:
        """The term in which this process leads; None when it does not. Ask right before every act."""
        return None if self._over else self._tenure.term(self._clock.monotonic_seconds())

    async def require(self, tx: Transaction, term: int) -> None:
        """In the transaction of every write: nothing is written in a term that is over. Raises Conflict."""
        try:
            await tx.leases.require(self.holder, term)
        except Conflict:
            self._tenure.lost()
            raise

    async def run(self) -> None:
        """Look and renew until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EACH_S)

    async def look(self) -> None:
        """One look, and the move that it calls for. A store that is away costs the lease, no more."""
        if self._over:
            return
        try:
            await self._look()
        except StoreError as error:
            if self._led is not None and self.term() is None:
                log.warning(
                    "the lease cannot be renewed: %s", error.message, extra=fields(action="lease_waits")
                )
        self._say()

    async def give_back(self) -> None:
        """At an orderly end: another may lead at once, and this process never again. Raises StoreError."""
        term, self._over = self.term(), True
        self._say()
        if term is not None:
            async with self._store.transaction() as tx:
                await tx.leases.give_back(self.holder, term)

    async def _look(self) -> None:
        since_s = self._clock.monotonic_seconds() - self._renewed_s
        if self.term() is None:
            async with self._store.reading() as tx:
                row = await tx.leases.current()
            self._tenure.seen(row, self._clock.monotonic_seconds())
        elif since_s < RENEW_EACH_S - LOOK_EACH_S / 2:
            return
        asked_s = self._clock.monotonic_seconds()
        move, row = self._tenure.next_move(asked_s)
        if move is Move.WAIT:
            return
        wanted = renewed(row) if move is Move.RENEW else taken(row, self.holder, self._clock.utc_seconds())
        async with self._store.transaction() as tx:
            done = await tx.leases.change(row, wanted)
        if done:
            self._tenure.held(wanted, asked_s, self._clock.monotonic_seconds())
            self._renewed_s = asked_s
        else:
            self._tenure.lost()

    def _say(self) -> None:
        term = self.term()
        if term == self._led:
            return
        if term is not None:
            log.info("this process leads, term %d", term, extra=fields(action="lease_held", term=term))
        else:
            log.warning("this process leads no more", extra=fields(action="lease_lost", term=self._led))
        self._led = term
