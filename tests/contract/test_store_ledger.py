"""Usage, contributions, audit: the same promises on SQLite and PostgreSQL."""

import asyncio

import pytest
import sqlalchemy as sa
from msgspec.structs import replace

from panal.core.errors import BadRequest, StoreError
from panal.ledger.values import AttemptOutcome, Outcome
from panal.store import tables
from panal.store.audit import FIRST_HASH
from panal.store.usage import UsageTotals
from tests.support.databases import KINDS, fresh_store
from tests.support.rows import NOW_US, contribution_row, key_row, usage_row

ACTOR = key_row().principal()


@pytest.fixture(params=KINDS)
async def store(request, tmp_path):
    async with fresh_store(request.param, tmp_path) as store:
        yield store


async def _append(store, action: str = "node.cordon", **details) -> None:
    async with store.transaction() as tx:
        await tx.audit.append(
            event_id="evt_1", actor=ACTOR, action=action, target="node_1", now_utc_us=NOW_US, details=details
        )


async def test_a_usage_record_comes_back_as_it_was(store):
    record = usage_row(outcome=Outcome.CUT, partial=True, estimated=True, first_token_us=None, error_code="x")
    async with store.transaction() as tx:
        await tx.usage.add([record])
        assert await tx.usage.list("tnt_default") == [record]


async def test_usage_written_twice_is_one_row(store):
    rows = [usage_row(number) for number in range(5)]
    await store.add_usage(rows, [contribution_row(number) for number in range(5)])
    await store.add_usage([*rows, usage_row(9)], [contribution_row(number) for number in range(5)])
    async with store.reading() as tx:
        totals = await tx.usage.totals("tnt_default")
        assert totals == UsageTotals(6, 60, 120, 24, 6)
        assert await tx.contributions.of_request("req_00000003") == [contribution_row(3)]


async def test_the_first_record_of_a_request_stays(store):
    await store.add_usage([usage_row(1, completion_tokens=7)], [])
    await store.add_usage([usage_row(1, completion_tokens=9)], [])
    async with store.reading() as tx:
        assert [row.completion_tokens for row in await tx.usage.list("tnt_default")] == [7]


async def test_usage_is_listed_newest_first_in_pages_and_by_filter(store):
    rows = [
        usage_row(number, model="large" if number % 3 == 0 else "small", principal_id=f"prn_{number % 2}")
        for number in range(12)
    ]
    await store.add_usage(rows, [])
    async with store.reading() as tx:
        first = await tx.usage.list("tnt_default", limit=5)
        second = await tx.usage.list("tnt_default", limit=50, before=first[-1].request_id)
        chosen = await tx.usage.list(
            "tnt_default",
            of="prn_0",
            model="large",
            since_utc_us=NOW_US + 1,
            until_utc_us=NOW_US + 10,
        )
        assert await tx.usage.list("tnt_other") == []
        assert (await tx.usage.totals("tnt_other")) == UsageTotals(0, 0, 0, 0, 0)
    assert [*first, *second] == rows[::-1]
    assert [row.created_utc_us - NOW_US for row in chosen] == [6]


async def test_a_value_that_cannot_be_stored_is_the_callers_fault(store):
    with pytest.raises(BadRequest):
        await store.add_usage([usage_row(1, prompt_tokens=2**70)], [])
    async with store.reading() as tx:
        assert await tx.usage.list("tnt_default") == []


@pytest.mark.parametrize("node_first", [True, False])
async def test_both_halves_of_a_contribution_make_one_row_in_any_order(store, node_first):
    ours = contribution_row(completion_tokens=18, useful_tokens=18)
    theirs = contribution_row(
        principal_id="", prompt_tokens=10, completion_tokens=25, useful_tokens=0, duration_us=60_000
    )

    async def gateway() -> None:
        async with store.transaction() as tx:
            await tx.contributions.add([ours])

    async def node() -> None:
        async with store.transaction() as tx:
            await tx.contributions.confirm([theirs])

    for step in (node, gateway, node, gateway) if node_first else (gateway, node, gateway):
        await step()
    async with store.reading() as tx:
        assert await tx.contributions.of_request(ours.request_id) == [
            replace(ours, completion_tokens=25, duration_us=60_000)
        ]


async def test_a_node_cannot_change_what_another_is_known_for(store):
    async with store.transaction() as tx:
        await tx.contributions.add([contribution_row()])
        await tx.contributions.confirm([contribution_row(node_id="node_evil", completion_tokens=1_000_000)])
        assert await tx.contributions.of_request("req_00000001") == [contribution_row()]
        assert await tx.contributions.of_node("node_evil") == []


async def test_contributions_of_a_node_come_oldest_first(store):
    rows = [contribution_row(number, outcome=AttemptOutcome.HANDED_OVER) for number in range(4)]
    async with store.transaction() as tx:
        await tx.contributions.add(rows[::-1])
        assert await tx.contributions.of_node("node_0001") == rows
        assert await tx.contributions.of_node("node_0001", since_utc_us=NOW_US + 2) == rows[2:]


async def test_the_audit_chain_is_whole_and_told_newest_first(store):
    for number in range(5):
        await _append(store, f"step.{number}", number=number, note="schön")
    async with store.reading() as tx:
        events = await tx.audit.list("tnt_default", limit=3)
        older = await tx.audit.list("tnt_default", before=events[-1].sequence)
        state = await tx.audit.verify()
    assert [event.action for event in [*events, *older]] == [f"step.{number}" for number in range(4, -1, -1)]
    assert older[-1].previous == FIRST_HASH
    assert events[0].details == '{"note":"schön","number":4}'
    assert state.whole
    assert state.events == 5


async def test_appending_at_once_keeps_the_chain_whole(store):
    await asyncio.gather(*(_append(store, number=number) for number in range(12)))
    async with store.reading() as tx:
        state = await tx.audit.verify()
    assert (state.whole, state.events) == (True, 12)


async def test_an_event_that_arrives_during_a_check_does_not_break_it(store):
    await _append(store)
    async with store.reading() as tx:
        page_after = tx.audit._page_after

        async def page_and_news(sequence):
            page = await page_after(sequence)
            await _append(store)
            return page

        tx.audit._page_after = page_and_news
        assert (await tx.audit.verify()).whole


async def test_what_is_read_cannot_be_written(store):
    if store._engine.dialect.name == "postgresql":
        with pytest.raises(StoreError):
            async with store.reading() as tx:
                await tx.revisions.advance("keys")


async def test_an_event_of_a_change_that_failed_is_not_there(store):
    with pytest.raises(RuntimeError):
        async with store.transaction() as tx:
            await tx.audit.append(event_id="evt_1", actor=ACTOR, action="x", target="y", now_utc_us=NOW_US)
            raise RuntimeError
    async with store.reading() as tx:
        assert (await tx.audit.verify()).events == 0


@pytest.mark.parametrize(
    ("statement", "broken_at"),
    [
        ("UPDATE audit_events SET target = 'another' WHERE sequence = 3", 3),
        ("UPDATE audit_events SET created_utc_us = created_utc_us + 1 WHERE sequence = 1", 1),
        ("DELETE FROM audit_events WHERE sequence = 2", 2),
        ("DELETE FROM audit_events WHERE sequence = 5", 5),
        ("UPDATE audit_events SET hash = previous WHERE sequence = 4", 4),
    ],
)
async def test_tampering_is_found(store, statement, broken_at):
    for _ in range(5):
        await _append(store)
    async with store._engine.begin() as connection:
        await connection.execute(sa.text(statement))
    async with store.reading() as tx:
        state = await tx.audit.verify()
    assert not state.whole
    assert state.broken_at == broken_at
    assert state.reason


async def test_a_chain_longer_than_a_page_is_checked_to_its_end(store):
    async with store.transaction() as tx:
        for _ in range(1_050):
            await tx.audit.append(event_id="evt_1", actor=ACTOR, action="x", target="y", now_utc_us=NOW_US)
    async with store._engine.begin() as connection:
        await connection.execute(
            tables.audit_events.update().where(tables.audit_events.c.sequence == 1_040).values(outcome="no")
        )
    async with store.reading() as tx:
        assert (await tx.audit.verify()).broken_at == 1_040
