"""Two gateways' limiters on one real store."""

import asyncio
from dataclasses import replace

import pytest

from panal.core.clock import ManualClock
from panal.core.requests import Usage
from panal.ledger.values import Outcome
from panal.policy.blocks import KEEP_S
from panal.policy.limits import Limit, LimitKind
from panal.store import Store, open_store
from tests.support.databases import KINDS, fresh_url
from tests.support.limiters import LIMIT_S, processes
from tests.support.path import principal
from tests.support.rows import NOW_US

TENANT = "tnt_default"


class TwoStores:
    """What two processes have of one database: each its own connections."""

    def __init__(self, stores: list[Store]) -> None:
        self._stores = stores
        self.limits_revision = stores[0].limits_revision
        self.every_limit = stores[0].every_limit

    async def exchange_limits(self, gateway_id, *rest):
        return await self._stores[int(gateway_id[-1])].exchange_limits(gateway_id, *rest)


@pytest.fixture(params=KINDS)
async def stores(request, tmp_path):
    async with fresh_url(request.param, tmp_path) as url:
        both = [await open_store(url), await open_store(url)]
        yield both
        for store in both:
            await store.close()


async def set_limits(stores: list[Store], *limits: Limit) -> TwoStores:
    async with stores[0].transaction() as tx:
        for limit in limits:
            await tx.limits.set(TENANT, limit, NOW_US)
    return TwoStores(stores)


async def test_p38_parallel_requests_over_two_gateways_never_pass_the_limit(stores):
    """100 tokens a minute, 3 requests; 20 parallel requests of 60 tokens."""
    store = await set_limits(
        stores,
        Limit("key_test", LimitKind.TOKENS_PER_MINUTE, 100),
        Limit("key_test", LimitKind.REQUESTS_PER_MINUTE, 3),
    )
    clock = ManualClock()
    async with processes(store, 2, clock) as both:
        let_in = await asyncio.gather(*(both[number % 2].ask(60) for number in range(20)))
        assert sum(let_in) == 1
        errors = [error for each in both for error in each.refused]
        assert len(errors) == 19
        assert {(error.code, error.retry_after_s) for error in errors} == {("rate_limit_exceeded", 60)}
        holder, other = both if both[0].let_in else both[::-1]
        holder.end(Usage(), Outcome.FAILED)
        clock.advance(KEEP_S)
        async with asyncio.timeout(LIMIT_S):
            while not await other.ask(100):
                clock.advance(0.01)
                await asyncio.sleep(0.01)
        other.end(Usage(10, 10))
        assert [await other.ask(20), await other.ask(20), await other.ask(20)] == [True, True, False]


async def test_every_request_of_a_budget_is_let_in_and_not_one_more(stores):
    budget = Limit("prj_default", LimitKind.REQUESTS_PER_DAY, 100)
    store = await set_limits(stores, budget, Limit("key_test", LimitKind.CONCURRENCY, 10))
    clock = ManualClock()
    count = 0
    async with processes(store, 2, clock) as both:
        async with asyncio.timeout(60):
            idle_rounds = 0
            while idle_rounds < 3:
                found = await asyncio.gather(*(both[number % 2].ask() for number in range(12)))
                count += sum(found)
                assert sum(found) <= 10
                for process in both:
                    while process.let_in:
                        process.end(Usage(1, 1))
                idle_rounds = 0 if any(found) else idle_rounds + 1
                clock.advance(KEEP_S)
                await asyncio.sleep(0.3)
    assert count == 100


async def test_keys_of_one_project_share_its_limit(stores):
    store = await set_limits(stores, Limit("prj_default", LimitKind.REQUESTS_PER_MINUTE, 4))
    async with processes(store, 2, ManualClock()) as both:
        callers = [replace(principal(), key_id=f"key_{number}") for number in range(6)]
        asked = [both[number % 2].ask(principal=caller) for number, caller in enumerate(callers)]
        assert sum(await asyncio.gather(*asked)) == 4
