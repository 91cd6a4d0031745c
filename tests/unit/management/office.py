"""A management over a real store, with an issuer and a notice that remember."""

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from panal.core.clock import ManualClock
from panal.core.errors import BusError
from panal.core.ids import IdSource, NodeKey
from panal.core.principals import Principal, Role
from panal.identity.key_directory import KeyDirectory
from panal.management import Management, Means, bootstrap
from panal.store import Store
from tests.support.databases import fresh_store

PEPPER = bytes(range(32))
PIN = "0123456789abcdef" * 2


@dataclass
class Issuer:
    revoked: list[NodeKey] = field(default_factory=list)
    away: bool = False

    def node_credential(self, key: NodeKey, valid_s: int) -> str:
        return "credential"

    async def revoke(self, key: NodeKey) -> None:
        if self.away:
            raise BusError("away")
        self.revoked.append(key)

    async def ensure_revoked(self, keys: Iterable[NodeKey]) -> None:
        if self.away:
            raise BusError("away")
        self.revoked += [key for key in keys if key not in self.revoked]


@dataclass
class Office:
    store: Store
    clock: ManualClock
    issuer: Issuer
    told: list[str]
    management: Management
    directory: KeyDirectory
    admin: Principal
    user: Principal
    secrets: tuple[str, str]

    @property
    def operator(self) -> Principal:
        return replace(self.admin, role=Role.OPERATOR)

    async def caller(self, secret: str) -> Principal:
        await self.directory.refresh()
        return self.directory.principal_of(b"Bearer " + secret.encode())

    async def actions(self) -> list[str]:
        """What the audit log tells, oldest first; checks the chain on the way."""
        async with self.store.reading() as tx:
            assert (await tx.audit.verify()).whole
            return [event.action for event in await tx.audit.list("tnt_default", limit=1000)][::-1]


@asynccontextmanager
async def open_office(folder: Path, kind: str = "sqlite") -> AsyncIterator[Office]:
    async with fresh_store(kind, folder) as store:
        clock, issuer, told = ManualClock(), Issuer(), []
        ids = IdSource(clock, os.urandom)
        keys = await bootstrap(
            store, ids=ids, clock=clock, entropy=os.urandom, pepper=PEPPER, keep=lambda _: None
        )
        assert keys is not None
        means = Means(
            store=store,
            issuer=issuer,
            ids=ids,
            clock=clock,
            entropy=os.urandom,
            pepper=PEPPER,
            pin=PIN,
            notify=lambda: told.append("changed"),
        )
        directory = KeyDirectory(store, PEPPER, clock)
        await directory.refresh()
        yield Office(
            store=store,
            clock=clock,
            issuer=issuer,
            told=told,
            management=Management(means),
            directory=directory,
            admin=directory.principal_of(b"Bearer " + keys.admin_secret.encode()),
            user=directory.principal_of(b"Bearer " + keys.user_secret.encode()),
            secrets=(keys.user_secret, keys.admin_secret),
        )
