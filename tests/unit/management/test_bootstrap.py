"""The first start."""

import asyncio
import os

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import SettingsError
from panal.core.ids import IdSource
from panal.core.principals import Role
from panal.identity.key_directory import KeyDirectory
from panal.management import FirstKeys, bootstrap
from tests.support.databases import KINDS, fresh_store
from tests.unit.management.office import PEPPER

CLOCK = ManualClock()
IDS = IdSource(CLOCK, os.urandom)


@pytest.fixture(params=KINDS)
async def store(request, tmp_path):
    async with fresh_store(request.param, tmp_path) as store:
        yield store


async def _start(store, keep=lambda _: None) -> FirstKeys | None:
    return await bootstrap(store, ids=IDS, clock=CLOCK, entropy=os.urandom, pepper=PEPPER, keep=keep)


async def test_the_first_start_makes_a_user_key_and_an_admin_key(store):
    keys = await _start(store)
    assert keys is not None
    directory = KeyDirectory(store, PEPPER, CLOCK)
    await directory.refresh()
    user = directory.principal_of(b"Bearer " + keys.user_secret.encode())
    admin = directory.principal_of(b"Bearer " + keys.admin_secret.encode())
    assert (user.role, admin.role) == (Role.USER, Role.ADMIN)
    assert user.principal_id == admin.principal_id
    assert directory.known_keys == 2


async def test_later_starts_make_none(store):
    assert await _start(store) is not None
    assert await _start(store) is None


async def test_several_programs_that_start_at_once_make_one_pair(store):
    made = await asyncio.gather(*(_start(store) for _ in range(6)))
    assert sum(keys is not None for keys in made) == 1
    assert len(await store.usable_keys()) == 2


async def test_keys_that_could_not_be_kept_are_not_made(store):
    def refuse(_: FirstKeys) -> None:
        raise PermissionError(13, "read only")

    with pytest.raises(SettingsError, match="read only"):
        await _start(store, refuse)
    assert await store.usable_keys() == []
    kept = []
    assert await _start(store, kept.append) == kept[0]
