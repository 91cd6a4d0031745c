"""Limits in the store: never over, by any number of gateways at once, on SQLite and PostgreSQL."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from panal.core.ids import GatewayId
from panal.policy.limits import AMOUNT_MAX, Account, Exchange, Limit, LimitKind
from panal.store import migrate, open_store
from panal.store.database import make_engine
from tests.support.databases import KINDS, fresh_url
from tests.support.rows import NOW_US

TOKENS = Limit("key_0001", LimitKind.TOKENS_PER_MINUTE, 100)
REQUESTS = Limit("key_0001", LimitKind.REQUESTS_PER_DAY, 3)
PLACES = Limit("prj_default", LimitKind.CONCURRENCY, 4)
MINUTE_S = 1_800_000_000
T, R, P = Account(TOKENS.name, MINUTE_S), Account(REQUESTS.name, MINUTE_S), Account(PLACES.name, 0)
LEASE_US = 15_000_000
TENANT = "tnt_default"

SPENDER = """
import asyncio, sys
from panal.policy.limits import Account, Exchange
from panal.store import open_store
async def main():
    store = await open_store(sys.argv[1])
    account, got = Account(sys.argv[2], 1_800_000_000), 0
    for _ in range(30):
        ask = Exchange({account: 0}, {}, [{account: 3}], {account: 5})
        shares = await store.exchange_limits(sys.argv[3], ask, 0, 1)
        got += shares.granted[account]
    await store.close()
    print(got)
asyncio.run(main())
"""


@pytest.fixture(params=KINDS)
async def url(request, tmp_path):
    async with fresh_url(request.param, tmp_path) as url:
        yield url


@pytest.fixture
async def store(url):
    store = await open_store(url)
    async with store.transaction() as tx:
        for limit in (TOKENS, REQUESTS, PLACES):
            await tx.limits.set(TENANT, limit, NOW_US)
    yield store
    await store.close()


async def exchange(store, gateway="gw_1", *, giving=None, holding=None, asks=(), wishes=None, now_us=NOW_US):
    message = Exchange(giving or {}, holding or {}, list(asks), wishes or {})
    return await store.exchange_limits(GatewayId(gateway), message, now_us, LEASE_US)


async def test_limits_are_set_changed_listed_and_cleared(store):
    before = await store.limits_revision()
    larger = Limit("key_0001", LimitKind.TOKENS_PER_MINUTE, 200)
    async with store.transaction() as tx:
        await tx.limits.set(TENANT, larger, NOW_US + 1)
        assert await tx.limits.list(TENANT, ["key_0001"]) == [REQUESTS, larger]
        assert await tx.limits.list("tnt_other") == []
        assert await tx.limits.clear("tnt_other", "key_0001", list(LimitKind)) == []
        assert await tx.limits.clear(TENANT, "key_0001", [LimitKind.REQUESTS_PER_DAY]) == [REQUESTS]
    assert await store.every_limit() == [larger, PLACES]
    assert await store.limits_revision() > before


async def test_a_request_gets_all_that_it_asks_or_nothing(store):
    first = await exchange(store, asks=[{T: 60, R: 1}])
    assert first.accepted == (True,)
    second = await exchange(store, "gw_2", asks=[{T: 60, R: 1}, {T: 40, R: 1}])
    assert second.accepted == (False, True)
    third = await exchange(store, asks=[{T: 1, R: 1}])
    assert third.accepted == (False,)
    assert (third.left[T], third.left[R]) == (0, 1)


async def test_what_is_given_back_is_there_for_others_and_debts_are_kept(store):
    await exchange(store, asks=[{T: 100}])
    assert (await exchange(store, giving={T: 70})).left[T] == 70
    assert (await exchange(store, giving={T: -80})).left[T] == -10
    assert (await exchange(store, "gw_2", asks=[{T: 1}])).accepted == (False,)


async def test_each_window_begins_anew_and_old_ones_are_forgotten(store):
    for minute in range(4):
        account = Account(TOKENS.name, MINUTE_S + 60 * minute)
        assert (await exchange(store, asks=[{account: 100}])).accepted == (True,)
    assert (await exchange(store, giving={T: 0})).left[T] == 100
    assert (await exchange(store, giving={Account(TOKENS.name, MINUTE_S + 180): 0})).left == {
        Account(TOKENS.name, MINUTE_S + 180): 0
    }


async def test_places_of_a_gateway_that_is_gone_come_back_when_its_lease_ends(store):
    assert (await exchange(store, holding={P: 0}, asks=[{P: 1}] * 3)).accepted == (True, True, True)
    both = [{P: 1}, {P: 1}]
    assert (await exchange(store, "gw_2", holding={P: 0}, asks=both)).accepted == (True, False)
    later = NOW_US + LEASE_US - 1
    assert (await exchange(store, "gw_2", holding={P: 1}, asks=[{P: 1}], now_us=later)).accepted == (False,)
    gone = await exchange(store, "gw_2", holding={P: 1}, asks=both, now_us=NOW_US + LEASE_US)
    assert gone.accepted == (True, True)


async def test_places_that_are_renewed_stay_and_those_not_held_any_more_are_free(store):
    await exchange(store, holding={P: 0}, asks=[{P: 1}] * 4)
    await exchange(store, holding={P: 3}, now_us=NOW_US + LEASE_US - 1)
    found = await exchange(store, "gw_2", holding={P: 0}, asks=[{P: 1}] * 2, now_us=NOW_US + LEASE_US + 5)
    assert found.accepted == (True, False)
    await exchange(store, holding={P: 0}, now_us=NOW_US + LEASE_US + 6)
    found = await exchange(store, "gw_2", holding={P: 1}, now_us=NOW_US + LEASE_US + 7)
    assert found.left[P] == 3


async def test_a_limit_that_was_cleared_binds_nobody(store):
    async with store.transaction() as tx:
        await tx.limits.clear(TENANT, "key_0001", list(LimitKind))
    shares = await exchange(store, asks=[{T: 1_000}])
    assert shares.accepted == (True,)
    assert shares.left[T] == AMOUNT_MAX - 1_000


async def test_setting_a_limit_again_does_not_forget_what_was_used(store):
    await exchange(store, asks=[{T: 90}])
    async with store.transaction() as tx:
        await tx.limits.clear(TENANT, "key_0001", list(LimitKind))
        await tx.limits.set(TENANT, TOKENS, NOW_US)
    assert (await exchange(store, asks=[{T: 11}])).accepted == (False,)


async def test_parallel_calls_of_several_gateways_are_never_granted_more_than_the_limit(store, url):
    other = await open_store(url)
    try:
        calls = [
            exchange(each, f"gw_{number}", asks=[{T: 7, R: 1}], wishes={T: 10})
            for number in range(10)
            for each in (store, other)
        ]
        shares = await asyncio.gather(*calls)
    finally:
        await other.close()
    assert sum(each.accepted[0] for each in shares) == 3
    assert sum(each.granted[T] for each in shares) <= 100


async def test_parallel_processes_are_granted_exactly_what_there_is(store, url):
    async with store.transaction() as tx:
        await tx.limits.set(TENANT, Limit("key_0001", LimitKind.TOKENS_PER_MINUTE, 200), NOW_US)

    def spend(number: int) -> int:
        done = subprocess.run(
            [sys.executable, "-c", SPENDER, url, TOKENS.name, f"gw_{number}"],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        return int(done.stdout)

    got = await asyncio.gather(*(asyncio.to_thread(spend, number) for number in range(3)))
    left = (await exchange(store, giving={T: 0})).left[T]
    assert sum(got) + left == 200
    assert 0 <= left < 3


@pytest.mark.parametrize("kind", KINDS)
async def test_a_database_without_limits_gets_them_and_keeps_its_rows(kind, tmp_path):
    def to_the_first_shape(connection: sa.Connection) -> None:
        config = Config()
        config.set_main_option("script_location", str(Path(migrate.__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")

    async with fresh_url(kind, tmp_path, migrated=False) as url:
        engine = make_engine(url, 1)
        async with engine.begin() as connection:
            await connection.run_sync(to_the_first_shape)
            await connection.execute(sa.text("UPDATE revisions SET number = 7 WHERE name = 'keys'"))
        await engine.dispose()
        store = await open_store(url)
        assert await store.keys_revision() == 7
        assert await store.limits_revision() == 0
        assert await store.every_limit() == []
        await store.close()
