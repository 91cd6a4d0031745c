"""Operations on keys: nobody gains rights, and no secret is kept anywhere."""

import logging
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from panal.core.errors import BadRequest, NotAllowed, NotAuthenticated, NotFound
from panal.core.nodes import DataClass
from panal.core.principals import Role
from panal.identity.api_keys import digest_of
from panal.management.api_keys import KeyWish
from tests.unit.management.office import PEPPER, open_office


@pytest.fixture
async def office(tmp_path):
    async with open_office(tmp_path) as office:
        yield office


RANK = [Role.USER, Role.OPERATOR, Role.ADMIN]


async def test_a_new_key_works_after_a_refresh_and_a_revoked_one_does_not(office):
    keys = office.management.api_keys
    made = await keys.create(office.admin, KeyWish(name="robot", new_principal="robot"))
    caller = await office.caller(made.secret)
    assert caller.key_id == made.view.id
    assert caller.principal_id == made.view.principal != office.admin.principal_id
    assert (await keys.revoke(office.admin, made.view.id)).state == "revoked"
    with pytest.raises(NotAuthenticated):
        await office.caller(made.secret)
    assert (await keys.revoke(office.admin, made.view.id)).state == "revoked"
    assert (await office.actions())[2:] == ["key.create", "key.revoke"]
    assert len(office.told) == 3


async def test_a_key_with_a_life_ends_by_itself(office):
    made = await office.management.api_keys.create(office.admin, KeyWish(life_s=60))
    await office.caller(made.secret)
    office.clock.advance(60)
    with pytest.raises(NotAuthenticated):
        await office.caller(made.secret)
    states = sorted(view.state for view in (await office.management.api_keys.list(office.admin)).items)
    assert states == ["expired", "good", "good"]


@pytest.mark.parametrize(("own", "wished"), list(product(RANK, RANK)))
async def test_nobody_makes_a_key_with_more_rights_than_their_own(office, own, wished):
    actor = replace(office.admin, role=own)
    create = office.management.api_keys.create(actor, KeyWish(role=wished))
    if RANK.index(wished) > RANK.index(own):
        with pytest.raises(NotAllowed):
            await create
    else:
        assert (await create).view.role == wished.value


@pytest.mark.parametrize(("own", "wished"), list(product(DataClass, DataClass)))
async def test_nobody_but_an_admin_makes_their_data_less_sensitive(office, own, wished):
    actor = replace(office.user, data_class=own)
    create = office.management.api_keys.create(actor, KeyWish(data_class=wished))
    if wished < own:
        with pytest.raises(NotAllowed):
            await create
    else:
        assert (await create).view.data_class == wished.label


@pytest.mark.parametrize(
    ("own", "wished", "allowed"),
    [
        (set(), {"DE"}, True),
        (set(), set(), True),
        ({"DE"}, None, True),
        ({"DE", "ES"}, {"ES"}, True),
        ({"DE"}, {"DE", "US"}, False),
        ({"DE"}, {"US"}, False),
        ({"DE"}, set(), False),
    ],
)
async def test_nobody_but_an_admin_widens_their_residency(office, own, wished, allowed):
    actor = replace(office.user, residency=frozenset(own))
    wish = KeyWish(residency=None if wished is None else frozenset(wished))
    if allowed:
        made = await office.management.api_keys.create(actor, wish)
        assert made.view.residency == sorted(own if wished is None else wished)
    else:
        with pytest.raises(NotAllowed):
            await office.management.api_keys.create(actor, wish)


async def test_a_users_key_does_not_outlive_the_one_it_was_made_with(office):
    keys = office.management.api_keys
    short = await office.caller((await keys.create(office.admin, KeyWish(life_s=100))).secret)
    with pytest.raises(NotAllowed, match="outlive"):
        await keys.create(short, KeyWish())
    with pytest.raises(NotAllowed, match="outlive"):
        await keys.create(short, KeyWish(life_s=101))
    await keys.create(short, KeyWish(life_s=100))


async def test_keys_for_others_need_an_admin(office):
    keys = office.management.api_keys
    bob = (await keys.create(office.admin, KeyWish(new_principal="bob"))).view.principal
    for wish in (KeyWish(new_principal="eve"), KeyWish(principal_id=bob)):
        with pytest.raises(NotAllowed):
            await keys.create(office.user, wish)
    assert (await keys.create(office.admin, KeyWish(principal_id=bob))).view.principal == bob
    with pytest.raises(NotFound):
        await keys.create(office.admin, KeyWish(principal_id="prn_none"))


async def test_users_see_and_revoke_their_own_keys_only(office):
    keys = office.management.api_keys
    made = await keys.create(office.admin, KeyWish(new_principal="bob"))
    bob = await office.caller(made.secret)
    assert [view.id for view in (await keys.list(bob)).items] == [made.view.id]
    assert len((await keys.list(office.operator)).items) == 3
    with pytest.raises(NotFound):
        await keys.revoke(bob, office.admin.key_id)
    with pytest.raises(NotFound):
        await keys.revoke(office.admin, "key_none")
    assert (await keys.revoke(bob, made.view.id)).state == "revoked"


async def test_all_keys_of_a_disabled_principal_die(office):
    keys = office.management.api_keys
    made = [await keys.create(office.admin, KeyWish(new_principal="bob"))]
    made.append(await keys.create(office.admin, KeyWish(principal_id=made[0].view.principal)))
    with pytest.raises(NotAllowed):
        await keys.disable_principal(office.operator, made[0].view.principal)
    await keys.disable_principal(office.admin, made[0].view.principal)
    for key in made:
        with pytest.raises(NotAuthenticated):
            await office.caller(key.secret)
    with pytest.raises(NotFound):
        await keys.create(office.admin, KeyWish(principal_id=made[0].view.principal))
    with pytest.raises(NotFound):
        await keys.disable_principal(office.admin, "prn_none")


@pytest.mark.parametrize(
    "wish",
    [
        KeyWish(name="x" * 101),
        KeyWish(principal_id="prn_1", new_principal="bob"),
        KeyWish(life_s=0),
        KeyWish(life_s=11 * 365 * 24 * 3600),
        KeyWish(residency=frozenset({"Germany"})),
    ],
)
async def test_wishes_out_of_bounds_are_refused(office, wish):
    with pytest.raises(BadRequest):
        await office.management.api_keys.create(office.admin, wish)


async def test_no_secret_is_in_the_database_the_log_or_any_later_answer(office, caplog):
    caplog.set_level(logging.DEBUG)
    keys = office.management.api_keys
    made = await keys.create(office.admin, KeyWish(name="canary", new_principal="canary"))
    await office.caller(made.secret)
    await keys.revoke(office.admin, made.view.id)
    answers = [
        await keys.list(office.admin),
        await office.management.audit.list(office.admin),
        await office.management.audit.verify(office.admin),
    ]
    database = Path(str(office.store._engine.url.database))
    kept = b"".join(path.read_bytes() for path in database.parent.glob(database.name + "*"))
    for secret in (made.secret, *office.secrets):
        plain_hash = digest_of(b"", secret.encode())
        assert secret.encode() not in kept
        assert plain_hash not in kept
        for text in (caplog.text, repr(answers), repr(made.view)):
            assert secret not in text
            assert plain_hash.hex() not in text
        peppered = digest_of(PEPPER, secret.encode())
        assert peppered.hex() not in caplog.text
        assert peppered.hex() not in repr(answers)


async def test_a_key_may_want_tool_calls_in_one_piece(office):
    keys = office.management.api_keys
    made = await keys.create(office.admin, KeyWish())
    assert made.view.tool_buffering == "stream"
    assert (await keys.set_tool_buffering(office.admin, made.view.id, "whole")).tool_buffering == "whole"
    assert (await office.caller(made.secret)).tools_whole
    page = await keys.list(office.admin)
    assert {key.id: key.tool_buffering for key in page.items}[made.view.id] == "whole"
    assert (await keys.set_tool_buffering(office.admin, made.view.id, "stream")).tool_buffering == "stream"
    assert not (await office.caller(made.secret)).tools_whole
    assert (await office.actions())[-2:] == ["key.tool_buffering", "key.tool_buffering"]
    with pytest.raises(BadRequest):
        await keys.set_tool_buffering(office.admin, made.view.id, "sometimes")


async def test_users_say_so_of_their_own_keys_only(office):
    keys = office.management.api_keys
    made = await keys.create(office.admin, KeyWish(new_principal="robot"))
    robot = await office.caller(made.secret)
    assert (await keys.set_tool_buffering(robot, made.view.id, "whole")).tool_buffering == "whole"
    with pytest.raises(NotFound):
        await keys.set_tool_buffering(robot, office.user.key_id, "whole")
