"""The limiter of a gateway process: who waits for the store, who does not, and what is given back."""

import asyncio

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import StoreError
from panal.core.requests import Route, Usage
from panal.dispatch.limiter import reserved_tokens
from panal.ledger.values import Outcome
from panal.policy.blocks import KEEP_S, LEASE_SAFE_S
from panal.policy.limits import Limit, LimitKind
from tests.support.limit_store import MemoryLimits
from tests.support.limiters import LIMIT_S, processes
from tests.support.path import a_request, principal

TOKENS = Limit("key_test", LimitKind.TOKENS_PER_MINUTE, 100)
REQUESTS = Limit("prj_default", LimitKind.REQUESTS_PER_MINUTE, 3)
PLACES = Limit("tnt_default", LimitKind.CONCURRENCY, 2)
GONE = (Usage(), Outcome.CLIENT_GONE)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def until(condition) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def given_back(store: MemoryLimits, total: int) -> None:
    await until(lambda: sum(store.used.values()) == total)


async def test_a_caller_without_limits_never_meets_the_store(clock):
    store = MemoryLimits(Limit("key_other", LimitKind.TOKENS_PER_MINUTE, 1))
    async with processes(store, 1, clock) as [gateway]:
        assert await gateway.ask(1_000_000)
        assert gateway.let_in[0][1] is None
        assert gateway.limiter.headers_of(principal()) == []
    assert store.exchanges == 0


async def test_most_requests_find_their_part_in_memory(clock):
    store = MemoryLimits(Limit("key_test", LimitKind.TOKENS_PER_MINUTE, 1_000_000))
    async with processes(store, 1, clock) as [gateway]:
        for _ in range(1_000):
            assert await gateway.ask(60)
            gateway.end(Usage(10, 50))
    assert store.exchanges < 20


async def test_all_that_wait_share_one_round_trip(clock):
    store = MemoryLimits(Limit("key_test", LimitKind.REQUESTS_PER_DAY, 40))
    store.held_up = asyncio.Event()
    async with processes(store, 1, clock) as [gateway]:
        asking = [asyncio.create_task(gateway.ask()) for _ in range(60)]
        await until(lambda: store.exchanges == 1)
        store.held_up.set()
        assert sum(await asyncio.gather(*asking)) == 40
    assert store.exchanges <= 3


async def test_refused_requests_cost_nothing_in_any_window(clock):
    store = MemoryLimits(TOKENS, REQUESTS)
    async with processes(store, 1, clock) as [gateway]:
        assert [await gateway.ask() for _ in range(5)] == [True, False, False, False, False]
        gateway.end(Usage(10, 20))
        assert [await gateway.ask(70) for _ in range(3)] == [True, False, False]
        gateway.end(*GONE)
        assert [await gateway.ask(20) for _ in range(3)] == [True, True, False]
    error = gateway.refused[-1]
    assert (error.code, error.retry_after_s) == ("rate_limit_exceeded", 60)
    assert "tokens a minute" in gateway.refused[0].message
    assert "requests a minute" in error.message


async def test_what_is_unused_goes_back_to_the_store(clock):
    store = MemoryLimits(TOKENS)
    async with processes(store, 2, clock) as [first, second]:
        assert await first.ask(90)
        assert not await second.ask(20)
        first.end(Usage(10, 20))
        clock.advance(KEEP_S)
        await given_back(store, 30)
        assert await second.ask(70)


async def test_an_answer_longer_than_reserved_is_the_only_overshoot(clock):
    store = MemoryLimits(TOKENS)
    async with processes(store, 2, clock) as [first, second]:
        assert await first.ask(60)
        first.end(Usage(10, 130))
        await given_back(store, 140)
        clock.advance(1.0)
        assert not await first.ask(11)
        assert not await second.ask(11)
        clock.advance(60.0)
        assert await second.ask(100)


@pytest.mark.parametrize(
    ("used", "outcome", "charged"),
    [
        (Usage(10, 30), Outcome.COMPLETE, 40),
        (Usage(10, 5), Outcome.CLIENT_GONE, 15),
        (Usage(10, 5), Outcome.CUT, 15),
        (Usage(), Outcome.CLIENT_GONE, 0),
        (Usage(), Outcome.FAILED, 0),
        (Usage(), Outcome.REFUSED, 0),
    ],
)
async def test_limits_count_what_the_ledger_charges(clock, used, outcome, charged):
    store = MemoryLimits(TOKENS, REQUESTS)
    async with processes(store, 1, clock) as [gateway]:
        assert await gateway.ask(60)
        gateway.end(used, outcome)
        headers = dict(gateway.limiter.headers_of(principal()))
    assert headers["x-ratelimit-remaining-tokens"] == str(100 - charged)
    assert headers["x-ratelimit-remaining-requests"] == str(3 - bool(charged))


async def test_headers_tell_the_tightest_limit_and_agree_with_the_next_answer(clock):
    day = Limit("tnt_default", LimitKind.TOKENS_PER_DAY, 80)
    store = MemoryLimits(TOKENS, day, REQUESTS)
    async with processes(store, 1, clock) as [gateway]:
        for number in range(3):
            headers = dict(gateway.limiter.headers_of(principal()))
            assert headers["x-ratelimit-remaining-requests"] == str(3 - number)
            assert headers["x-ratelimit-remaining-tokens"] == str(80 - 20 * number)
            assert await gateway.ask(20)
    assert headers["x-ratelimit-limit-tokens"] == "80"
    assert headers["x-ratelimit-reset-requests"] == "1m0s"
    assert headers["x-ratelimit-reset-tokens"] == "16h0m0s"


async def test_places_are_free_at_the_end_of_a_request(clock):
    store = MemoryLimits(PLACES)
    async with processes(store, 2, clock) as [first, second]:
        assert [await first.ask(), await second.ask(), await first.ask()] == [True, True, False]
        assert first.refused[0].retry_after_s == 1
        second.end(*GONE)
        assert await second.ask()
        second.end(Usage(1, 1))
        clock.advance(KEEP_S)
        await until(lambda: store.held[PLACES.name, "gw_1"][0] == 0)
        assert await first.ask()


async def test_a_lease_is_renewed_while_its_requests_run(clock):
    store = MemoryLimits(PLACES)
    async with processes(store, 2, clock) as [first, second]:
        assert await first.ask() and await first.ask()
        for _ in range(10):
            clock.advance(LEASE_SAFE_S / 3)
            expires_us = round(clock.utc_seconds() * 1_000_000)
            await until(lambda now=expires_us: store.held[PLACES.name, "gw_0"][1] > now + 14_000_000)
        assert not await second.ask()


async def test_without_the_store_no_new_block_is_taken_and_debts_are_kept(clock):
    store = MemoryLimits(TOKENS)
    async with processes(store, 1, clock) as [gateway]:
        assert await gateway.ask(60)
        store.away = True
        with pytest.raises(StoreError):
            await gateway.ask(40)
        gateway.end(Usage(10, 70))
        store.away = False
        clock.advance(KEEP_S)
        await until(lambda: sum(store.used.values()) >= 80)


async def test_who_leaves_while_it_waits_takes_nothing_along(clock):
    store = MemoryLimits(TOKENS, PLACES)
    async with processes(store, 1, clock) as [gateway]:
        store.held_up = asyncio.Event()
        asking = asyncio.create_task(gateway.ask(100))
        await until(lambda: store.exchanges == 1)
        asking.cancel()
        store.held_up.set()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await gateway.ask(100)


async def test_a_part_on_its_way_to_the_store_is_not_taken_for_missing(clock):
    store = MemoryLimits(TOKENS)
    async with processes(store, 1, clock) as [gateway]:
        assert await gateway.ask(100)
        gateway.end(Usage(10, 40))
        store.held_up = asyncio.Event()
        clock.advance(KEEP_S)
        await until(lambda: store.exchanges == 2)
        assert dict(gateway.limiter.headers_of(principal()))["x-ratelimit-remaining-tokens"] == "50"
        waits = asyncio.create_task(gateway.ask(20))
        await asyncio.sleep(0)
        store.held_up.set()
        assert await waits


async def test_limits_that_change_are_in_force_after_the_next_refresh(clock):
    store = MemoryLimits()
    async with processes(store, 1, clock) as [gateway]:
        assert await gateway.ask(1_000)
        store.set(TOKENS)
        await gateway.limiter.refresh()
        assert not await gateway.ask(101)
        store.set()
        await gateway.limiter.refresh()
        assert await gateway.ask(101)


async def test_a_gateway_that_ends_gives_back_all_it_holds(clock):
    store = MemoryLimits(Limit("key_test", LimitKind.TOKENS_PER_DAY, 100_000))
    async with processes(store, 1, clock) as [gateway]:
        assert await gateway.ask(60)
        gateway.end(Usage(10, 50))
        assert sum(store.used.values()) > 60
        await gateway.limiter.close()
    assert sum(store.used.values()) == 60


def test_an_answer_without_a_limit_is_reserved_for_by_default_and_an_embedding_has_none(clock):
    assert reserved_tokens(a_request(clock, prompt_tokens_estimate=10)) == 210
    assert reserved_tokens(a_request(clock, prompt_tokens_estimate=10, max_tokens=7)) == 17
    assert reserved_tokens(a_request(clock, prompt_tokens_estimate=10, route=Route.EMBEDDINGS)) == 10
