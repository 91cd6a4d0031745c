"""Operations on aliases and on keys' names: who may, what is refused, what is told and written down."""

import pytest

from panal.core.errors import BadRequest, Conflict, NotAllowed, NotFound
from panal.core.principals import Role
from panal.management.api_keys import KeyWish
from tests.unit.management.office import open_office


@pytest.fixture
async def office(tmp_path):
    async with open_office(tmp_path) as office:
        async with office.store.transaction() as tx:
            await tx.models.seen("SmolLM2", "twin", 1)
            await tx.models.seen("smollm2", "twin", 2)
            await tx.models.seen("large", "twin", 3)
        yield office


async def test_an_alias_is_made_led_elsewhere_renamed_and_removed(office):
    aliases, admin = office.management.aliases, office.admin
    made = await aliases.set(admin, " Fast ", "SMOLLM2")
    assert (made.name, made.model) == ("Fast", "SmolLM2"), "the model's name as it was first written"
    led = await aliases.set(admin, "fast", "large")
    assert (led.name, led.model, led.created_utc_s) == ("Fast", "large", made.created_utc_s)
    assert (await aliases.rename(admin, "FAST", "Quick")).name == "Quick"
    assert (await aliases.rename(admin, "quick", "QUICK")).name == "QUICK"
    assert [each.name for each in (await aliases.list(admin)).items] == ["QUICK"]
    assert (await aliases.remove(admin, "quick")).model == "large"
    assert (await aliases.list(admin)).items == []
    written = await office.actions()
    expected = ["alias.create", "alias.change", "alias.rename", "alias.rename", "alias.remove"]
    assert written[-5:] == expected
    assert office.told == ["changed"] * 5


async def test_only_an_admin_changes_names(office):
    aliases = office.management.aliases
    await aliases.set(office.admin, "fast", "large")
    for actor in (office.user, office.operator):
        for attempt in (
            aliases.set(actor, "x", "large"),
            aliases.rename(actor, "fast", "y"),
            aliases.remove(actor, "fast"),
            office.management.api_keys.set_models(actor, actor.key_id, []),
        ):
            with pytest.raises(NotAllowed):
                await attempt


async def test_a_name_that_is_taken_is_refused(office):
    aliases, admin = office.management.aliases, office.admin
    await aliases.set(admin, "fast", "large")
    await aliases.set(admin, "quick", "large")
    for name in ("large", " LARGE "):
        with pytest.raises(Conflict, match="name of a model"):
            await aliases.set(admin, name, "smollm2")
        with pytest.raises(Conflict, match="name of a model"):
            await aliases.rename(admin, "fast", name)
    with pytest.raises(Conflict, match="already"):
        await aliases.rename(admin, "fast", "QUICK")


async def test_what_is_not_there_is_not_found(office):
    aliases, admin = office.management.aliases, office.admin
    await aliases.set(admin, "fast", "large")
    with pytest.raises(NotFound, match="not to another alias"):
        await aliases.set(admin, "second", "fast")
    with pytest.raises(NotFound, match="no node has served"):
        await aliases.set(admin, "second", "never")
    for attempt in (aliases.rename(admin, "never", "x"), aliases.remove(admin, "never")):
        with pytest.raises(NotFound):
            await attempt
    with pytest.raises(NotFound):
        await office.management.api_keys.set_models(admin, "key_never", [])


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 257, "sk-panal-" + "a" * 40])
async def test_what_is_no_name_is_refused(office, name):
    with pytest.raises(BadRequest):
        await office.management.aliases.set(office.admin, name, "large")
    with pytest.raises(BadRequest):
        await office.management.api_keys.set_models(office.admin, office.user.key_id, [name])


async def test_a_keys_names_are_set_shown_and_lifted(office):
    keys = office.management.api_keys
    made = await keys.create(office.admin, KeyWish(models=frozenset({"Fast", " fast ", "large"})))
    assert [name.casefold() for name in made.view.models] == ["fast", "large"]
    assert (await office.caller(made.secret)).models == {"fast", "large"}
    assert (await keys.set_models(office.admin, made.view.id, ["LARGE"])).models == ["LARGE"]
    assert (await office.caller(made.secret)).models == {"large"}
    assert (await keys.set_models(office.admin, made.view.id, [])).models == []
    assert (await office.caller(made.secret)).models == frozenset()
    assert (await office.actions())[-2:] == ["key.models", "key.models"]
    with pytest.raises(BadRequest):
        await keys.set_models(office.admin, made.view.id, [f"m{number}" for number in range(101)])


async def test_rights_follow_a_renaming_and_survive_a_removal(office):
    aliases, keys = office.management.aliases, office.management.api_keys
    await aliases.set(office.admin, "fast", "large")
    made = await keys.create(office.admin, KeyWish(models=frozenset({"fast"})))
    await aliases.rename(office.admin, "fast", "quick")
    assert (await office.caller(made.secret)).models == {"quick"}
    await aliases.remove(office.admin, "quick")
    assert (await office.caller(made.secret)).models == {"quick"}, "a key never loses its last name"


async def test_nobody_makes_a_key_for_more_names_than_their_own(office):
    keys = office.management.api_keys
    made = await keys.create(
        office.admin, KeyWish(principal_id=office.user.principal_id, models=frozenset({"a", "b"}))
    )
    caller = await office.caller(made.secret)
    assert (await keys.create(caller, KeyWish())).view.models == ["a", "b"]
    assert (await keys.create(caller, KeyWish(models=frozenset({"A"})))).view.models == ["A"]
    for wider in (frozenset(), frozenset({"a", "c"})):
        with pytest.raises(NotAllowed):
            await keys.create(caller, KeyWish(models=wider))


async def test_a_restricted_caller_sees_its_own_aliases_only(office):
    aliases = office.management.aliases
    for name in ("a", "b"):
        await aliases.set(office.admin, name, "large")
    made = await office.management.api_keys.create(office.admin, KeyWish(models=frozenset({"B"})))
    caller = await office.caller(made.secret)
    assert [each.name for each in (await aliases.list(caller)).items] == ["b"]
    assert [each.name for each in (await aliases.list(office.user)).items] == ["a", "b"]


async def test_an_admin_whose_key_is_restricted_cannot_widen_it(office):
    """Neither by the key itself, nor by leading a name that it may use to a model that it may not."""
    aliases, keys = office.management.aliases, office.management.api_keys
    await aliases.set(office.admin, "mine", "smollm2")
    await aliases.set(office.admin, "theirs", "large")
    made = await keys.create(office.admin, KeyWish(role=Role.ADMIN, models=frozenset({"mine", "SmolLM2"})))
    admin = await office.caller(made.secret)
    for attempt in (
        keys.create(admin, KeyWish(role=Role.ADMIN, models=frozenset())),
        keys.create(admin, KeyWish(models=frozenset({"large"}), new_principal="another")),
        keys.set_models(admin, made.view.id, []),
        keys.set_models(admin, made.view.id, ["mine", "large"]),
        aliases.set(admin, "mine", "large"),
        aliases.set(admin, "theirs", "smollm2"),
        aliases.set(admin, "new", "smollm2"),
        aliases.rename(admin, "theirs", "new"),
        aliases.remove(admin, "theirs"),
    ):
        with pytest.raises(NotAllowed):
            await attempt
    assert (await aliases.set(admin, "mine", "smollm2")).model == "SmolLM2"
    assert (await keys.set_models(admin, made.view.id, ["mine"])).models == ["mine"]
