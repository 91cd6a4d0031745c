"""Nodes, keys, tokens, models: the same promises on SQLite and PostgreSQL."""

import asyncio
from dataclasses import replace

import pytest

from panal.core.errors import Conflict
from panal.core.nodes import Membership
from panal.store import Store
from tests.support.databases import KINDS, fresh_store
from tests.support.rows import NOW_US, OWNER, key_row, node_key, node_row, principal_row, token_row


@pytest.fixture(params=KINDS)
async def store(request, tmp_path):
    async with fresh_store(request.param, tmp_path) as store:
        yield store


async def _add_owner(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.principals.add(principal_row())


async def test_a_key_comes_back_as_it_was(store):
    await _add_owner(store)
    async with store.transaction() as tx:
        await tx.api_keys.add(key_row(expires_utc_us=NOW_US + 1))
    assert await store.usable_keys() == [key_row(expires_utc_us=NOW_US + 1)]


async def test_revoked_keys_and_keys_of_disabled_owners_are_not_usable(store):
    await _add_owner(store)
    async with store.transaction() as tx:
        await tx.principals.add(principal_row(principal_id="prn_other"))
        await tx.api_keys.add(key_row(1))
        await tx.api_keys.add(key_row(2))
        await tx.api_keys.add(key_row(3, principal_id="prn_other"))
        assert await tx.api_keys.revoke("tnt_default", "key_0001", NOW_US)
        assert not await tx.api_keys.revoke("tnt_default", "key_0001", NOW_US + 5)
        assert await tx.principals.disable("tnt_default", "prn_other")
    assert [key.key_id for key in await store.usable_keys()] == ["key_0002"]


async def test_more_keys_than_a_page_are_all_usable(store):
    await _add_owner(store)
    async with store.transaction() as tx:
        for number in range(1, 202):
            await tx.api_keys.add(key_row(number))
    assert len({key.key_id for key in await store.usable_keys()}) == 201


async def test_another_tenants_key_cannot_be_seen_or_revoked(store):
    await _add_owner(store)
    async with store.transaction() as tx:
        await tx.api_keys.add(key_row())
        assert await tx.api_keys.get("tnt_other", "key_0001") is None
        assert not await tx.api_keys.revoke("tnt_other", "key_0001", NOW_US)
        assert await tx.api_keys.list("tnt_other") == []


async def test_every_change_of_keys_raises_the_revision_and_use_does_not(store):
    await _add_owner(store)
    seen = [await store.keys_revision()]
    async with store.transaction() as tx:
        await tx.api_keys.add(key_row())
    seen.append(await store.keys_revision())
    async with store.transaction() as tx:
        await tx.api_keys.revoke("tnt_default", "key_0001", NOW_US)
    seen.append(await store.keys_revision())
    async with store.transaction() as tx:
        await tx.principals.disable("tnt_default", OWNER)
    seen.append(await store.keys_revision())
    assert seen == sorted(set(seen))
    await store.note_key_use({"key_0001": NOW_US})
    assert await store.keys_revision() == seen[-1]


async def test_last_use_moves_forward_only(store):
    await _add_owner(store)
    async with store.transaction() as tx:
        await tx.api_keys.add(key_row())
    await store.note_key_use({"key_0001": NOW_US + 10})
    await store.note_key_use({"key_0001": NOW_US + 3})
    await store.note_key_use({"key_unknown": NOW_US})
    assert (await store.usable_keys())[0].last_used_utc_us == NOW_US + 10


async def test_keys_are_listed_in_pages(store):
    await _add_owner(store)
    async with store.transaction() as tx:
        for number in range(1, 8):
            await tx.api_keys.add(key_row(number))
        first = await tx.api_keys.list("tnt_default", limit=4)
        second = await tx.api_keys.list("tnt_default", after=first[-1].key_id, limit=4)
    assert [key.key_id for key in [*first, *second]] == [f"key_{number:04d}" for number in range(1, 8)]


async def test_a_token_comes_back_as_it_was(store):
    async with store.transaction() as tx:
        await tx.join_tokens.add(token_row(approve=True))
        assert await tx.join_tokens.by_public_id(token_row().public_id) == token_row(approve=True)
        assert await tx.join_tokens.by_public_id("zzzzzzzzzz") is None


async def test_a_token_with_two_uses_gives_two_whoever_asks_at_once(store):
    async with store.transaction() as tx:
        await tx.join_tokens.add(token_row(uses_left=2))

    async def take() -> bool:
        async with store.transaction() as tx:
            return await tx.join_tokens.take_use("jtk_0001", NOW_US)

    taken = await asyncio.gather(*(take() for _ in range(10)))
    assert sum(taken) == 2


@pytest.mark.parametrize("change", [{"expires_utc_us": NOW_US}, {"uses_left": 0}, {"revoked_utc_us": NOW_US}])
async def test_a_dead_token_gives_no_use(store, change):
    async with store.transaction() as tx:
        await tx.join_tokens.add(token_row(**change))
        assert not await tx.join_tokens.take_use("jtk_0001", NOW_US)


async def test_a_use_taken_in_a_failed_transaction_comes_back(store):
    async with store.transaction() as tx:
        await tx.join_tokens.add(token_row())
    with pytest.raises(RuntimeError):
        async with store.transaction() as tx:
            assert await tx.join_tokens.take_use("jtk_0001", NOW_US)
            raise RuntimeError
    async with store.transaction() as tx:
        assert await tx.join_tokens.take_use("jtk_0001", NOW_US)


async def test_nodes_that_wish_the_same_name_get_distinct_ones(store):
    async with store.transaction() as tx:
        names = [(await tx.nodes.admit(node_row(number))).name for number in range(1, 4)]
    assert names == ["desk", "desk-2", "desk-3"]


async def test_nodes_that_wish_the_same_name_at_once_get_distinct_ones(store):
    async def admit(number: int) -> str:
        async with store.transaction() as tx:
            return (await tx.nodes.admit(node_row(number))).name

    names = await asyncio.gather(*(admit(number) for number in range(1, 9)))
    assert sorted(names) == ["desk", *(f"desk-{number}" for number in range(2, 9))]


async def test_a_name_with_a_joker_in_it_is_just_a_name(store):
    async with store.transaction() as tx:
        await tx.nodes.admit(node_row(1, name="d%_k"))
        assert (await tx.nodes.admit(node_row(2, name="d%"))).name == "d%"


async def test_the_name_of_a_revoked_node_is_free_again(store):
    async with store.transaction() as tx:
        await tx.nodes.admit(node_row(1))
        await tx.nodes.decide("node_0001", Membership.REVOKED, "lost", expected=Membership.ACTIVE)
        assert (await tx.nodes.admit(node_row(2))).name == "desk"
        found = await tx.nodes.find("tnt_default", "desk")
        assert found is not None
        assert found.node_id == "node_0002"
        by_id = await tx.nodes.find("tnt_default", "node_0001")
        assert by_id is not None
        assert by_id.membership is Membership.REVOKED


async def test_a_key_is_enrolled_once_even_after_revocation(store):
    async with store.transaction() as tx:
        await tx.nodes.admit(node_row(1))
        await tx.nodes.decide("node_0001", Membership.REVOKED, "", expected=Membership.ACTIVE)
    with pytest.raises(Conflict):
        async with store.transaction() as tx:
            await tx.nodes.admit(node_row(2, key=node_key(1)))


async def test_the_same_key_at_once_is_enrolled_once(store):
    async def admit(number: int) -> bool:
        try:
            async with store.transaction() as tx:
                await tx.nodes.admit(node_row(number, key=node_key(77)))
        except Conflict:
            return False
        return True

    assert sum(await asyncio.gather(*(admit(number) for number in range(1, 7)))) == 1


async def test_a_replaced_key_stays_in_the_history_and_is_refused(store):
    async with store.transaction() as tx:
        await tx.nodes.admit(node_row(1))
        await tx.nodes.replace_key("node_0001", node_key(2), NOW_US + 1)
        by_old = await tx.nodes.by_key(node_key(1))
        assert by_old is not None
        assert by_old.key == node_key(2)
        assert await tx.nodes.revoked_keys() == [node_key(1)]
        with pytest.raises(Conflict):
            await tx.nodes.replace_key("node_0001", node_key(1), NOW_US + 2)


async def test_a_decision_is_taken_only_from_the_state_it_was_made_for(store):
    async with store.transaction() as tx:
        await tx.nodes.admit(node_row(1))
        assert not await tx.nodes.decide("node_0001", Membership.ACTIVE, "", expected=Membership.PENDING)
        assert await tx.nodes.decide("node_0001", Membership.CORDONED, "disk", expected=Membership.ACTIVE)
        node = await tx.nodes.get("node_0001")
    assert node == node_row(1, membership=Membership.CORDONED, reason="disk")


async def test_working_nodes_are_all_but_the_revoked(store):
    async with store.transaction() as tx:
        for number, membership in enumerate(Membership, start=1):
            await tx.nodes.admit(node_row(number, membership=membership))
        seen = {node.membership for node in await tx.nodes.all()}
        listed = await tx.nodes.list("tnt_default")
    assert seen == set(Membership) - {Membership.REVOKED}
    assert len(listed) == len(Membership)


async def test_being_seen_moves_forward_and_is_no_change(store):
    async with store.transaction() as tx:
        await tx.nodes.admit(node_row(1))
    before = await store.nodes_revision()
    async with store.transaction() as tx:
        await tx.nodes.note_seen({"node_0001": NOW_US + 5})
        await tx.nodes.note_seen({"node_0001": NOW_US})
        await tx.nodes.note_seen({})
        node = await tx.nodes.get("node_0001")
    assert node == replace(node_row(1), last_seen_utc_us=NOW_US + 5)
    assert await store.nodes_revision() == before


async def test_a_model_stays_known_while_it_rests(store):
    async with store.transaction() as tx:
        await tx.models.seen("small", "twin-1", NOW_US)
        await tx.models.seen("small", "twin-2", NOW_US + 9)
        await tx.models.seen("large", "", NOW_US)
        models = {model.name: model for model in await tx.models.all()}
        assert models.keys() == {"large", "small"}
        assert (models["small"].twin, models["small"].first_seen_utc_us) == ("twin-2", NOW_US)
        assert models["small"].last_seen_utc_us == NOW_US + 9
        assert await tx.models.forget("large")
        assert not await tx.models.forget("large")


async def test_by_which_addresses_a_node_may_be_woken_is_kept_and_taken_back(store):
    macs = ("3c:52:82:00:00:01", "3c:52:82:00:00:02")
    async with store.transaction() as tx:
        await tx.nodes.admit(node_row(1))
        await tx.nodes.admit(node_row(2))
    before = await store.nodes_revision()
    async with store.transaction() as tx:
        await tx.nodes.set_wake_macs("node_0001", macs)
        assert [(await tx.nodes.get(node)).wake_macs for node in ("node_0001", "node_0002")] == [macs, ()]
    assert await store.nodes_revision() > before
    async with store.transaction() as tx:
        await tx.nodes.set_wake_macs("node_0001", ())
        assert (await tx.nodes.get("node_0001")).wake_macs == ()
