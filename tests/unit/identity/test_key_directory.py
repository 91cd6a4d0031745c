"""Who calls: from memory, in every state of the store."""

import os
from dataclasses import replace

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import NotAuthenticated, StoreError
from panal.identity.api_keys import digest_of, new_key
from panal.identity.key_directory import AGE_S_MAX, DOUBT_S, OUTAGE_S_MAX, KeyDirectory
from tests.support.rows import key_row

PEPPER = bytes(range(32))


class Source:
    """Keys in memory; ``away`` makes it a store that is not there."""

    def __init__(self) -> None:
        self.records = []
        self.revision = 0
        self.away = False
        self.reads = 0
        self.used = {}

    def add(self, secret: str, **changes) -> None:
        number = len(self.records) + 1
        self.records.append(key_row(number, digest=digest_of(PEPPER, secret.encode()), **changes))
        self.revision += 1

    async def keys_revision(self) -> int:
        if self.away:
            raise StoreError("away")
        return self.revision

    async def usable_keys(self):
        self.reads += 1
        return list(self.records)

    async def note_key_use(self, used_utc_us):
        if self.away:
            raise StoreError("away")
        self.used.update(used_utc_us)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def source():
    return Source()


@pytest.fixture
def secret(source):
    secret = new_key(os.urandom)
    source.add(secret)
    return secret


@pytest.fixture
async def directory(source, secret, clock):
    directory = KeyDirectory(source, PEPPER, clock)
    await directory.refresh()
    return directory


def header(secret: str) -> bytes:
    return b"Bearer " + secret.encode()


async def test_a_known_key_names_its_caller(directory, secret):
    assert directory.principal_of(header(secret)) == key_row(1).principal()
    assert directory.principal_of(b"bearer  " + secret.encode() + b" ") == key_row(1).principal()
    assert directory.principal_of_key(secret.encode()) == key_row(1).principal()


async def test_no_key_wrong_key_and_no_form_at_all_get_the_same_text(directory, secret):
    wrong = [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        header(secret)[:-1],
        header(secret[:-1] + ("a" if secret[-1] != "a" else "b")),
        header(new_key(os.urandom)),
        b"Basic " + secret.encode(),
        secret.encode(),
        b"Bearer " + b"\xff" * 58,
        b"Bearer sk-panal-" + b"\xff" * 49,
        b"Bearer " + b"x" * 1_000_000,
    ]
    texts = set()
    for value in wrong:
        with pytest.raises(NotAuthenticated) as caught:
            directory.principal_of(value)
        texts.add(caught.value.message)
    assert len(texts) == 1
    assert secret not in texts.pop()


async def test_a_key_expires_between_two_refreshes(directory, source, clock):
    secret = new_key(os.urandom)
    source.add(secret, expires_utc_us=round((clock.utc_seconds() + 2) * 1_000_000))
    await directory.refresh()
    directory.principal_of(header(secret))
    clock.advance(2)
    with pytest.raises(NotAuthenticated):
        directory.principal_of(header(secret))


async def test_a_revoked_key_is_gone_after_a_refresh(directory, source, secret):
    source.records.clear()
    source.revision += 1
    await directory.refresh()
    with pytest.raises(NotAuthenticated):
        directory.principal_of(header(secret))


async def test_keys_are_read_only_when_they_changed_or_are_old(directory, source, clock, secret):
    await directory.refresh()
    assert source.reads == 1
    source.records[0] = replace(source.records[0], name="changed behind our back")
    clock.advance(AGE_S_MAX + 1)
    await directory.refresh()
    assert source.reads == 2


async def test_known_keys_go_on_while_the_store_is_away_but_not_for_ever(directory, source, secret, clock):
    source.away = True
    with pytest.raises(StoreError):
        await directory.refresh()
    clock.advance(OUTAGE_S_MAX)
    directory.principal_of(header(secret))
    clock.advance(1)
    with pytest.raises(StoreError) as caught:
        directory.principal_of(header(secret))
    assert caught.value.retry_after_s
    source.away = False
    await directory.refresh()
    directory.principal_of(header(secret))


async def test_during_an_outage_an_unknown_key_is_doubted_not_denied(directory, secret, clock):
    clock.advance(DOUBT_S + 0.1)
    with pytest.raises(StoreError):
        directory.principal_of(header(new_key(os.urandom)))
    with pytest.raises(NotAuthenticated):
        directory.principal_of(header(new_key(os.urandom)[:-1] + "-"))


def test_before_the_first_refresh_nobody_is_denied_or_let_in(source, secret, clock):
    with pytest.raises(StoreError):
        KeyDirectory(source, PEPPER, clock).principal_of(header(secret))


async def test_use_is_noted_each_minute_and_on_demand(directory, source, secret, clock):
    directory.principal_of(header(secret))
    await directory.refresh()
    assert source.used == {}
    clock.advance(61)
    await directory.refresh()
    assert source.used == {"key_0001": round((clock.utc_seconds() - 61) * 1_000_000)}
    directory.principal_of(header(secret))
    await directory.note_use()
    assert source.used == {"key_0001": round(clock.utc_seconds() * 1_000_000)}


async def test_use_that_could_not_be_written_is_not_lost(directory, source, secret):
    directory.principal_of(header(secret))
    source.away = True
    with pytest.raises(StoreError):
        await directory.note_use()
    source.away = False
    await directory.note_use()
    assert "key_0001" in source.used


def test_a_short_pepper_is_refused(source, clock):
    with pytest.raises(ValueError, match="32 bytes"):
        KeyDirectory(source, b"short", clock)
