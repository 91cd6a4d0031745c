"""Operations on limits: who may set them, for whom, and what is told of it."""

import pytest

from panal.core.errors import BadRequest, NotAllowed, NotFound
from panal.management.limits import LimitView
from panal.policy.limits import AMOUNT_MAX, LimitKind
from tests.unit.management.office import open_office

PER_MINUTE = LimitKind.TOKENS_PER_MINUTE


@pytest.fixture
async def office(tmp_path):
    async with open_office(tmp_path) as office:
        yield office


async def test_a_limit_is_set_shown_with_its_key_and_cleared(office):
    limits = office.management.limits
    key = office.user.key_id
    found = await limits.set(office.admin, key, {PER_MINUTE: 100, LimitKind.CONCURRENCY: 2})
    assert found.items == [
        LimitView(subject=key, limit="concurrency", amount=2),
        LimitView(subject=key, limit="tokens_per_minute", amount=100),
    ]
    shown = {view.id: view.limits for view in (await office.management.api_keys.list(office.admin)).items}
    assert shown == {key: {"concurrency": 2, "tokens_per_minute": 100}, office.admin.key_id: {}}
    assert (await limits.clear(office.admin, key, [PER_MINUTE])).items == found.items[:1]
    assert (await office.actions())[-2:] == ["limit.set", "limit.clear"]
    assert len(office.told) == 2


@pytest.mark.parametrize("subject", ["prj_default", "tnt_default"])
async def test_projects_and_tenants_have_limits_too(office, subject):
    found = await office.management.limits.set(office.admin, subject, {PER_MINUTE: 5})
    assert [(view.subject, view.amount) for view in found.items] == [(subject, 5)]


@pytest.mark.parametrize("subject", ["key_none", "prj_none", "tnt_other", "", "node_1"])
async def test_nobody_unknown_is_limited(office, subject):
    with pytest.raises(NotFound):
        await office.management.limits.set(office.admin, subject, {PER_MINUTE: 5})


@pytest.mark.parametrize("amounts", [{}, {PER_MINUTE: 0}, {PER_MINUTE: -1}, {PER_MINUTE: AMOUNT_MAX + 1}])
async def test_an_amount_is_a_sensible_number(office, amounts):
    with pytest.raises(BadRequest):
        await office.management.limits.set(office.admin, office.user.key_id, amounts)


async def test_only_admins_change_limits(office):
    limits = office.management.limits
    for actor in (office.user, office.operator):
        with pytest.raises(NotAllowed):
            await limits.set(actor, actor.key_id, {PER_MINUTE: 5})
        with pytest.raises(NotAllowed):
            await limits.clear(actor, actor.key_id, list(LimitKind))


async def test_a_user_sees_only_limits_that_bind_them(office):
    limits = office.management.limits
    for subject in (office.user.key_id, office.admin.key_id, "tnt_default"):
        await limits.set(office.admin, subject, {PER_MINUTE: 5})
    mine = [view.subject for view in (await limits.list(office.user)).items]
    assert sorted(mine) == sorted([office.user.key_id, "tnt_default"])
    assert (await limits.list(office.user, office.admin.key_id)).items == []
    assert len((await limits.list(office.operator)).items) == 3


async def test_what_is_not_limited_cannot_be_cleared(office):
    with pytest.raises(NotFound):
        await office.management.limits.clear(office.admin, office.user.key_id, list(LimitKind))
