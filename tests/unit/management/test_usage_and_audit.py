"""Listing usage and the audit log."""

import msgspec
import pytest
import sqlalchemy as sa

from panal.core.errors import BadRequest, NotAllowed, StoreError
from panal.identity.join_tokens import TokenWish
from panal.management.usage import UsageFilter
from tests.support.rows import NOW_US, usage_row
from tests.unit.management.office import open_office


@pytest.fixture
async def office(tmp_path):
    async with open_office(tmp_path) as office:
        mine = office.user.principal_id
        rows = [usage_row(number, principal_id=mine if number % 2 else "prn_other") for number in range(10)]
        await office.store.add_usage(rows, [])
        yield office


async def test_users_see_their_own_usage_and_operators_all(office):
    usage = office.management.usage
    assert len((await usage.list(office.user, UsageFilter())).items) == 5
    assert len((await usage.list(office.operator, UsageFilter())).items) == 10
    assert (await usage.totals(office.user, UsageFilter())).requests == 5
    assert (await usage.totals(office.operator, UsageFilter(principal_id="prn_other"))).requests == 5
    with pytest.raises(NotAllowed):
        await usage.list(office.user, UsageFilter(principal_id="prn_other"))
    with pytest.raises(NotAllowed):
        await usage.totals(office.user, UsageFilter(principal_id="prn_other"))


async def test_pages_follow_each_other_without_gap_or_double(office):
    usage = office.management.usage
    seen, before = [], ""
    while True:
        page = await usage.list(office.operator, UsageFilter(), before=before, limit=4)
        seen += [view.request for view in page.items]
        before = page.next
        if not before:
            break
    assert seen == [f"req_{number:08d}" for number in range(9, -1, -1)]


async def test_totals_of_a_span_of_time(office):
    start = NOW_US / 1_000_000
    chosen = UsageFilter(since_utc_s=start + 0.000_002, until_utc_s=start + 0.000_005)
    totals = await office.management.usage.totals(office.operator, chosen)
    assert (totals.requests, totals.prompt_tokens, totals.completion_tokens) == (3, 30, 60)


async def test_a_page_becomes_json(office):
    page = await office.management.usage.list(office.user, UsageFilter(), limit=1)
    told = msgspec.json.decode(msgspec.json.encode(page))
    assert told["items"][0]["total_s"] == 0.05
    assert told["items"][0]["first_token_s"] == 0.001
    assert told["next"] == "req_00000009"


async def test_a_limit_out_of_bounds_is_brought_within_them(office):
    assert len((await office.management.usage.list(office.operator, UsageFilter(), limit=0)).items) == 1
    assert len((await office.management.usage.list(office.operator, UsageFilter(), limit=10**9)).items) == 10


async def test_the_audit_log_is_told_in_pages_and_found_whole(office):
    for _ in range(5):
        await office.management.join_tokens.create(office.admin, TokenWish())
    audit = office.management.audit
    first = await audit.list(office.operator, limit=4)
    second = await audit.list(office.operator, limit=4, before=first.next)
    assert [view.sequence for view in [*first.items, *second.items]] == [7, 6, 5, 4, 3, 2, 1]
    assert second.next == ""
    assert first.items[0].key == office.admin.key_id
    state = await audit.verify(office.operator)
    assert (state.whole, state.events) == (True, 7)


async def test_tampering_with_the_audit_log_is_told(office):
    async with office.store._engine.begin() as connection:
        await connection.execute(sa.text("UPDATE audit_events SET target = 'x' WHERE sequence = 1"))
    state = await office.management.audit.verify(office.admin)
    assert (state.whole, state.broken_at, state.reason) == (False, 1, "an event was changed")


async def test_users_do_not_see_the_audit_log(office):
    with pytest.raises(NotAllowed):
        await office.management.audit.list(office.user)
    with pytest.raises(NotAllowed):
        await office.management.audit.verify(office.user)


@pytest.mark.parametrize("before", ["x", "-1", "9" * 30, "１"])
async def test_a_place_in_the_audit_log_is_a_number(office, before):
    with pytest.raises(BadRequest):
        await office.management.audit.list(office.admin, before=before)


async def test_if_the_audit_fails_so_does_the_change(office):
    async with office.store._engine.begin() as connection:
        await connection.execute(sa.text("DELETE FROM audit_head"))
    with pytest.raises(StoreError):
        await office.management.join_tokens.create(office.admin, TokenWish())
    assert (await office.management.join_tokens.list(office.admin)).items == []
