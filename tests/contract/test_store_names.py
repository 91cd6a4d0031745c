"""Aliases, and the names that keys are restricted to: the same promises on SQLite and PostgreSQL."""

import asyncio
from dataclasses import replace

import pytest

from panal.core.errors import Conflict
from panal.core.names import NAME_CHARACTERS_MAX, name_fault
from panal.core.records import AliasRecord
from panal.store import Store
from tests.support.databases import KINDS, fresh_store
from tests.support.rows import NOW_US, key_row, principal_row, usage_row

TENANT = "tnt_default"
FAST = AliasRecord(TENANT, "prj_default", "Fast", "small", NOW_US, NOW_US)


@pytest.fixture(params=KINDS)
async def store(request, tmp_path):
    async with fresh_store(request.param, tmp_path) as store:
        yield store


async def add(store: Store, *records: AliasRecord) -> None:
    async with store.transaction() as tx:
        for record in records:
            await tx.aliases.add(record)


async def test_an_alias_comes_back_as_it_was_and_is_found_by_the_rule(store):
    await add(store, FAST)
    async with store.reading() as tx:
        assert await tx.aliases.get(TENANT, " FAST ") == FAST
        assert await tx.aliases.get(TENANT, "faster") is None
        assert await tx.aliases.get("tnt_other", "Fast") is None
    assert await store.every_alias() == [FAST]


async def test_two_names_that_are_the_same_cannot_both_exist_in_a_tenant(store):
    await add(store, FAST)
    with pytest.raises(Conflict):
        await add(store, replace(FAST, name="fAST", model="large"))
    await add(store, replace(FAST, tenant_id="tnt_other", name="fast"))
    await add(store, replace(FAST, name="quick"))
    with pytest.raises(Conflict):
        async with store.transaction() as tx:
            await tx.aliases.rename(TENANT, "quick", "FAST", NOW_US + 1)


async def test_what_is_changed_is_changed_and_nothing_else(store):
    await add(store, FAST, replace(FAST, name="quick"))
    async with store.transaction() as tx:
        assert await tx.aliases.set_model(TENANT, "FAST", "large", NOW_US + 1)
        assert await tx.aliases.rename(TENANT, "fast", "Schnell", NOW_US + 2)
        assert not await tx.aliases.rename(TENANT, "fast", "x", NOW_US + 3)
        assert not await tx.aliases.set_model("tnt_other", "schnell", "x", NOW_US + 3)
        assert not await tx.aliases.remove("tnt_other", "quick")
    async with store.reading() as tx:
        found = await tx.aliases.list(TENANT)
        assert [(each.name, each.model, each.changed_utc_us) for each in found] == [
            ("quick", "small", NOW_US),
            ("Schnell", "large", NOW_US + 2),
        ]
        assert [each.name for each in await tx.aliases.list(TENANT, after=found[0].key)] == ["Schnell"]
        assert [each.name for each in await tx.aliases.list(TENANT, limit=1)] == ["quick"]
    async with store.transaction() as tx:
        assert await tx.aliases.remove(TENANT, "SCHNELL")
        assert not await tx.aliases.remove(TENANT, "schnell")
    assert [each.name for each in await store.every_alias()] == ["quick"]


async def test_every_change_raises_the_revision(store):
    seen = [await store.names_revision()]
    for change in ("add", "set", "rename", "remove"):
        async with store.transaction() as tx:
            match change:
                case "add":
                    await tx.aliases.add(FAST)
                case "set":
                    await tx.aliases.set_model(TENANT, "fast", "large", NOW_US)
                case "rename":
                    await tx.aliases.rename(TENANT, "fast", "quick", NOW_US)
                case "remove":
                    await tx.aliases.remove(TENANT, "quick")
        seen.append(await store.names_revision())
    assert seen == sorted(set(seen))


async def test_the_longest_names_have_room(store):
    for number, name in enumerate(["x" * NAME_CHARACTERS_MAX, "ΐ" * 85, "🐝" * NAME_CHARACTERS_MAX]):
        assert not name_fault(name)
        await add(store, replace(FAST, name=name, model="🐝" * 255 + str(number)))
    assert len(await store.every_alias()) == 3


async def test_a_key_keeps_its_names_and_they_follow_a_renaming(store):
    async with store.transaction() as tx:
        await tx.principals.add(principal_row())
        for number, models in enumerate([{"Fast", "b c"}, {"fast"}, {"other"}, set()]):
            await tx.api_keys.add(key_row(number, models=frozenset(models)))
        await tx.api_keys.add(key_row(9, tenant_id="tnt_other", models=frozenset({"fast"})))
    before = await store.keys_revision()
    async with store.transaction() as tx:
        assert await tx.api_keys.rename_model(TENANT, "FAST", "quick") == 2
    assert await store.keys_revision() > before
    keys = {key.key_id: key.models for key in await store.usable_keys()}
    assert keys == {
        "key_0000": {"quick", "b c"},
        "key_0001": {"quick"},
        "key_0002": {"other"},
        "key_0003": frozenset(),
        "key_0009": {"fast"},
    }
    async with store.transaction() as tx:
        await tx.api_keys.set_models(TENANT, "key_0000", frozenset({"x"}))
        await tx.api_keys.set_models("tnt_other", "key_0001", frozenset({"x"}))
        found = [await tx.api_keys.get(TENANT, name) for name in ("key_0000", "key_0001")]
    assert [key.models for key in found] == [{"x"}, {"quick"}]
    assert found[0].principal().models == {"x"}


async def test_more_keys_than_a_page_follow_a_renaming(store):
    async with store.transaction() as tx:
        await tx.principals.add(principal_row())
        for number in range(250):
            await tx.api_keys.add(key_row(number, models=frozenset({"fast"})))
        assert await tx.api_keys.rename_model(TENANT, "fast", "quick") == 250
    assert {key.models for key in await store.usable_keys()} == {frozenset({"quick"})}


async def test_usage_keeps_the_name_that_was_used(store):
    rows = [usage_row(1, name_used="fast"), usage_row(2)]
    await store.add_usage(rows, [])
    async with store.reading() as tx:
        assert await tx.usage.list(TENANT) == rows[::-1]


async def test_a_right_that_is_taken_while_a_name_is_renamed_stays_taken(store):
    async with store.transaction() as tx:
        await tx.principals.add(principal_row())
        await tx.api_keys.add(key_row(1))

    async def rename() -> None:
        async with store.transaction() as tx:
            await tx.api_keys.rename_model(TENANT, "fast", "quick")

    async def take(models: set[str]) -> None:
        async with store.transaction() as tx:
            await tx.api_keys.set_models(TENANT, "key_0001", frozenset(models))

    for _ in range(30):
        await take({"fast"})
        await asyncio.gather(rename(), take({"x"}))
        (key,) = await store.usable_keys()
        assert key.models == {"x"}
