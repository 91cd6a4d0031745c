"""The store as the programs see it: transactions over small repositories, one for each noun."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from panal.core.errors import SettingsError, StoreError
from panal.core.ids import ApiKeyId, GatewayId
from panal.core.records import AliasRecord, ApiKeyRecord
from panal.ledger.values import Contribution, UsageRecord
from panal.policy.limits import Exchange, Limit, Shares
from panal.store.aliases import Aliases
from panal.store.api_keys import ApiKeys
from panal.store.audit import AuditLog
from panal.store.contributions import Contributions
from panal.store.database import check_place, make_engine, store_errors
from panal.store.join_tokens import JoinTokens
from panal.store.leases import Leases
from panal.store.limits import Limits
from panal.store.migrate import MIGRATIONS, Migrations, migrate
from panal.store.models import Models
from panal.store.nodes import Nodes
from panal.store.principals import Principals
from panal.store.revisions import Revisions
from panal.store.usage import UsageRecords

CONNECTIONS_MAX = 5

_READING: dict[str, dict[str, object]] = {
    "sqlite": {"panal_reads": True},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}


class Transaction:
    """Everything done through it is written together or not at all."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.principals = Principals(connection)
        self.api_keys = ApiKeys(connection)
        self.join_tokens = JoinTokens(connection)
        self.nodes = Nodes(connection)
        self.models = Models(connection)
        self.aliases = Aliases(connection)
        self.usage = UsageRecords(connection)
        self.contributions = Contributions(connection)
        self.audit = AuditLog(connection)
        self.revisions = Revisions(connection)
        self.limits = Limits(connection)
        self.leases = Leases(connection)


class Store:
    """A database that was brought to this program's shape. Made by ``open_store``; close it at the end.

    Every method raises StoreError while the database cannot be used; each statement, connection and
    wait for one has a time limit, so none hangs.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._readers = engine.execution_options(**_READING[engine.dialect.name])
        self._sqlite_writer = asyncio.Lock() if engine.dialect.name == "sqlite" else None

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction that may write: committed at the end of the block, rolled back if it raises.

        Do nothing in the block but use the store. Conflict is raised where a unique row is there already.
        """
        return self._transaction()

    def reading(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction for reading only: one state of the whole database; it does not wait for writers."""
        return self._reading()

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Transaction]:
        async with AsyncExitStack() as stack:
            if self._sqlite_writer is not None:
                await stack.enter_async_context(self._sqlite_writer)
            with store_errors():
                async with self._engine.begin() as connection:
                    yield Transaction(connection)

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Transaction]:
        with store_errors():
            async with self._readers.connect() as connection:
                yield Transaction(connection)

    async def ping(self) -> None:
        """Raises StoreError when the database does not answer: for readiness."""
        with store_errors():
            async with self._readers.connect() as connection:
                await connection.execute(sa.select(1))

    async def close(self) -> None:
        await self._engine.dispose()

    # What identity, names, the limiter and the spool ask for, in one call each.

    async def keys_revision(self) -> int:
        """Rises with every change of keys and principals."""
        async with self.reading() as tx:
            return await tx.revisions.current("keys")

    async def nodes_revision(self) -> int:
        """Rises with every change of nodes, but not with their being seen."""
        async with self.reading() as tx:
            return await tx.revisions.current("nodes")

    async def usable_keys(self) -> Sequence[ApiKeyRecord]:
        async with self.reading() as tx:
            return await tx.api_keys.usable()

    async def note_key_use(self, used_utc_us: Mapping[ApiKeyId, int]) -> None:
        async with self.transaction() as tx:
            await tx.api_keys.note_use(used_utc_us)

    async def limits_revision(self) -> int:
        """Rises with every change of limits, but not with their use."""
        async with self.reading() as tx:
            return await tx.revisions.current("limits")

    async def every_limit(self) -> Sequence[Limit]:
        async with self.reading() as tx:
            return await tx.limits.all()

    async def names_revision(self) -> int:
        """Rises with every change of aliases."""
        async with self.reading() as tx:
            return await tx.revisions.current("names")

    async def every_alias(self) -> Sequence[AliasRecord]:
        async with self.reading() as tx:
            return await tx.aliases.all()

    async def exchange_limits(
        self, gateway_id: GatewayId, exchange: Exchange, now_utc_us: int, lease_us: int
    ) -> Shares:
        """Blocks given back and got, all in one transaction (see ``panal.store.limits``)."""
        async with self.transaction() as tx:
            return await tx.limits.exchange(gateway_id, exchange, now_utc_us, lease_us)

    async def add_usage(self, records: Sequence[UsageRecord], contributions: Sequence[Contribution]) -> None:
        """Writes both in one transaction; what is there already is not written twice."""
        async with self.transaction() as tx:
            await tx.usage.add(records)
            await tx.contributions.add(contributions)


async def open_store(
    url: str, *, connections_max: int = CONNECTIONS_MAX, migrations: Migrations = MIGRATIONS
) -> Store:
    """Connects and migrates. ``url``: ``sqlite:////absolute/path/panal.db`` or ``postgresql://...``

    Raises SettingsError when the URL is of another kind, the place cannot be written, the database
    was written by a newer program (it is left untouched), or it refuses us for good; StoreError when it
    cannot be reached now.
    """
    engine = make_engine(url, connections_max)
    try:
        check_place(engine)
        with store_errors():
            async with engine.execution_options(panal_migrates=True).begin() as connection:
                await migrate(connection, migrations)
        # The next connection has SQLite's foreign keys on again.
        await engine.dispose()
    except BaseException as error:
        await engine.dispose()
        if isinstance(error, StoreError) and error.lasting:
            words = f"{error.message} Correct 'gateway.store_url' or the database's rights."
            raise SettingsError(words) from error
        raise
    return Store(engine)
