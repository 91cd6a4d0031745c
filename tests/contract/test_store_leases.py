"""The controller's lease on both databases, and processes that want it at once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from panal.controller.leadership import Leadership
from panal.core.clock import ManualClock
from panal.core.errors import Conflict
from panal.policy.lease import LEASE_S, MARGIN_S, NOBODY, RENEW_EACH_S, LeaseRow, renewed, taken
from panal.store import Store, open_store
from tests.support.databases import KINDS, fresh_url

LIMIT_S = 20.0


@pytest.fixture(params=KINDS)
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Store]]:
    """One database as three processes have it."""
    async with fresh_url(request.param, tmp_path) as url:
        made = [await open_store(url) for _ in range(3)]
        yield made
        for store in made:
            await store.close()


async def row_of(store: Store) -> LeaseRow:
    async with store.reading() as tx:
        return await tx.leases.current()


async def changed(store: Store, seen: LeaseRow, wanted: LeaseRow) -> bool:
    async with store.transaction() as tx:
        return await tx.leases.change(seen, wanted)


async def test_a_new_database_has_a_lease_that_nobody_holds(stores: list[Store]) -> None:
    assert await row_of(stores[0]) == LeaseRow(NOBODY, 0, 0)


async def test_a_change_is_made_only_where_the_row_is_the_one_that_was_seen(stores: list[Store]) -> None:
    free = await row_of(stores[0])
    mine = taken(free, "gw_a", 100.0)
    assert await changed(stores[0], free, mine)
    assert not await changed(stores[1], free, taken(free, "gw_b", 100.0))
    assert await changed(stores[0], mine, renewed(mine))
    assert not await changed(stores[1], mine, taken(mine, "gw_b", 100.0))
    assert await row_of(stores[2]) == renewed(mine)


async def test_of_many_that_take_it_at_once_one_succeeds(stores: list[Store]) -> None:
    free = await row_of(stores[0])
    wanted = [taken(free, f"gw_{number}", 100.0) for number in range(12)]
    async with asyncio.timeout(LIMIT_S):
        done = await asyncio.gather(
            *(changed(stores[number % 3], free, each) for number, each in enumerate(wanted))
        )
    assert sum(done) == 1
    assert await row_of(stores[0]) == wanted[done.index(True)]


async def test_what_is_written_in_a_term_that_is_over_is_undone(stores: list[Store]) -> None:
    free = await row_of(stores[0])
    old = taken(free, "gw_a", 100.0)
    await changed(stores[0], free, old)
    async with stores[0].transaction() as tx:
        await tx.leases.require("gw_a", old.term)
        await tx.models.seen("while-leading", "twin", 1)
    await changed(stores[1], old, taken(old, "gw_b", 100.0))
    with pytest.raises(Conflict):
        async with stores[0].transaction() as tx:
            await tx.models.seen("too-late", "twin", 1)
            await tx.leases.require("gw_a", old.term)
    async with stores[2].reading() as tx:
        assert [record.name for record in await tx.models.all()] == ["while-leading"]


async def test_nobody_takes_the_lease_while_its_holder_writes(stores: list[Store]) -> None:
    free = await row_of(stores[0])
    old = taken(free, "gw_a", 100.0)
    await changed(stores[0], free, old)
    order: list[str] = []

    async def take() -> None:
        assert await changed(stores[1], old, taken(old, "gw_b", 100.0))
        order.append("taken")

    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group, stores[0].transaction() as tx:
        await tx.leases.require("gw_a", old.term)
        group.create_task(take())
        for _ in range(20):
            await asyncio.sleep(0.01)
        order.append("written")
    assert order == ["written", "taken"]


class Processes:
    """Leaderships that share a clock, which only the test moves."""

    def __init__(self, stores: list[Store]) -> None:
        self.clock = ManualClock()
        self.all = [Leadership(store, f"gw_{number}", self.clock) for number, store in enumerate(stores)]

    async def look(self, *of: int) -> list[int]:
        """The numbers of those that lead after these have looked."""
        for number in of or range(len(self.all)):
            await self.all[number].look()
        return [number for number, each in enumerate(self.all) if each.term() is not None]


async def test_the_first_leads_and_goes_on_leading_while_it_renews(stores: list[Store]) -> None:
    processes = Processes(stores)
    assert await processes.look() == [0]
    for _ in range(10):
        processes.clock.advance(RENEW_EACH_S)
        assert await processes.look() == [0]
    assert (await row_of(stores[0])).beat == 10


async def test_another_leads_within_its_time_when_the_leader_is_gone(stores: list[Store]) -> None:
    processes = Processes(stores)
    await processes.look()
    first = processes.all[0].term()
    processes.clock.advance(LEASE_S - MARGIN_S)
    assert await processes.look(1, 2) == []
    processes.clock.advance(MARGIN_S)
    assert await processes.look(2, 1) == [2]
    second = processes.all[2].term()
    assert first is not None and second is not None and second > first
    assert await processes.look(0) == [2]


async def test_a_lease_that_was_given_back_is_taken_at_once(stores: list[Store]) -> None:
    processes = Processes(stores)
    await processes.look()
    await processes.all[0].give_back()
    assert await processes.look(1) == [1]


async def test_who_gives_back_late_takes_nothing_from_its_successor(stores: list[Store]) -> None:
    free = await row_of(stores[0])
    old = taken(free, "gw_a", 100.0)
    await changed(stores[0], free, old)
    new = taken(old, "gw_b", 100.0)
    await changed(stores[1], old, new)
    async with stores[0].transaction() as tx:
        await tx.leases.give_back("gw_a", old.term)
    assert await row_of(stores[2]) == new


async def test_who_finds_another_leader_in_the_store_stops_at_once(stores: list[Store]) -> None:
    """As after a pause in which its clock stood still: it believes in its lease, and the store does not."""
    processes = Processes(stores)
    await processes.look()
    term = processes.all[0].term()
    assert term is not None
    old = await row_of(stores[1])
    await changed(stores[1], old, taken(old, "gw_1", 0.0))
    assert processes.all[0].term() == term
    with pytest.raises(Conflict):
        async with stores[0].transaction() as tx:
            await processes.all[0].require(tx, term)
    assert processes.all[0].term() is None
