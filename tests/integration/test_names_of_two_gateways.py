"""What two gateway processes know of names and rights, each with connections of its own to one real store."""

import os

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import ModelNotAllowed, ModelNotFound
from panal.core.ids import IdSource
from panal.dispatch.fleet import Fleet
from panal.dispatch.names import ServedNames
from panal.identity.key_directory import KeyDirectory
from panal.management import Management, Means, bootstrap
from panal.management.api_keys import KeyWish
from panal.store import Store, open_store
from tests.support.databases import KINDS, fresh_url
from tests.unit.management.office import PEPPER, PIN, Issuer


class Process:
    """What a gateway process keeps in memory; ``second`` is what it does each second."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.directory = KeyDirectory(store, PEPPER, clock)
        fleet = Fleet(clock)
        fleet.set_models(["m"])
        self.names = ServedNames(store, fleet, clock)

    async def second(self) -> None:
        await self.directory.refresh()
        await self.names.refresh()

    def ask(self, secret: str, name: str) -> str:
        """The model that answers. Raises what the client would be told."""
        principal = self.directory.principal_of(b"Bearer " + secret.encode())
        self.names.one(principal, name)
        return self.names.model_of(principal.tenant_id, name)


@pytest.fixture(params=KINDS)
async def url(request, tmp_path):
    async with fresh_url(request.param, tmp_path) as url:
        yield url


async def test_p14_every_process_has_a_change_after_its_next_look(url):
    """Alias A for M; renamed to B; B taken from one key; at most a second passes between two looks."""
    clock, stores = ManualClock(), [await open_store(url), await open_store(url)]
    try:
        ids = IdSource(clock, os.urandom)
        keys = await bootstrap(
            stores[0], ids=ids, clock=clock, entropy=os.urandom, pepper=PEPPER, keep=lambda _: None
        )
        async with stores[0].transaction() as tx:
            await tx.models.seen("m", "", 1)
        means = Means(stores[0], Issuer(), ids, clock, os.urandom, PEPPER, PIN, lambda: None)
        management, processes = Management(means), [Process(store, clock) for store in stores]

        async def look() -> None:
            for process in processes:
                await process.second()

        await look()
        admin = processes[0].directory.principal_of(b"Bearer " + keys.admin_secret.encode())
        made = await management.api_keys.create(admin, KeyWish(models=frozenset({"A"})))
        await management.aliases.set(admin, "A", "M")
        await look()
        assert [process.ask(made.secret, "a") for process in processes] == ["m", "m"]
        await management.aliases.rename(admin, "a", "B")
        await look()
        for process in processes:
            assert process.ask(made.secret, "b") == "m"
            with pytest.raises(ModelNotFound):
                process.ask(made.secret, "A")
        await management.api_keys.set_models(admin, made.view.id, ["m"])
        await look()
        for process in processes:
            assert process.ask(made.secret, "M") == "m"
            assert process.ask(keys.user_secret, "B") == "m"
            with pytest.raises(ModelNotAllowed):
                process.ask(made.secret, "B")
    finally:
        for store in stores:
            await store.close()
