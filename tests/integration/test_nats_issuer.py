"""Revoking from several programs at once, on a real server."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from panal.bus.authority_file import authority_path, load_authority
from panal.bus.issuer import NatsIssuer
from panal.core.errors import BusError
from panal.core.ids import NodeKey
from tests.support.hostile_client import is_refused
from tests.support.nats_installation import NatsInstallation


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[NatsInstallation]:
    installation = NatsInstallation(tmp_path)
    await installation.server.start()
    yield installation
    await installation.server.stop()


def another_program(installation: NatsInstallation) -> NatsIssuer:
    path = authority_path(installation.home)
    authority = load_authority(path, installation.clock)
    return NatsIssuer(
        authority, path, installation.servers, installation.clock, randomness=lambda: 0.5, entropy=os.urandom
    )


async def test_revocations_of_many_programs_at_once_all_hold(installation: NatsInstallation) -> None:
    keys = [installation.new_key() for _ in range(8)]
    credentials = [installation.credential(key) for key in keys]
    issuers = [another_program(installation) for _ in keys]
    await asyncio.gather(
        *(issuer.revoke(NodeKey(key.public)) for issuer, key in zip(issuers, keys, strict=True))
    )
    for key, credential in zip(keys, credentials, strict=True):
        assert await is_refused(installation, credential, key)
    free = installation.new_key()
    assert not await is_refused(installation, installation.credential(free), free)


async def test_a_revocation_is_kept_even_when_no_server_hears_it(installation: NatsInstallation) -> None:
    key = installation.new_key()
    credential = installation.credential(key)
    issuer = another_program(installation)
    await installation.server.stop()
    with pytest.raises(BusError):
        await asyncio.wait_for(issuer.revoke(NodeKey(key.public)), 20)
    await installation.server.start()
    assert await is_refused(installation, credential, key)


async def test_a_revocation_that_only_the_store_knows_is_made_good(installation: NatsInstallation) -> None:
    key, free = installation.new_key(), installation.new_key()
    credential = installation.credential(key)
    issuer = another_program(installation)
    await issuer.ensure_revoked([NodeKey(key.public)])
    assert await is_refused(installation, credential, key)
    assert not await is_refused(installation, installation.credential(free), free)


async def test_a_revocation_that_no_server_heard_is_pushed_later(installation: NatsInstallation) -> None:
    key = installation.new_key()
    issuer = another_program(installation)
    await issuer.ensure_revoked([])
    old = installation.authority.account_jwt()
    await issuer.revoke(NodeKey(key.public))
    await installation.push(old)  # as if the server had never heard of it
    credential = installation.credential(key)
    assert not await is_refused(installation, credential, key)
    await another_program(installation).ensure_revoked([NodeKey(key.public)])
    assert await is_refused(installation, credential, key)


async def test_nothing_is_sent_when_the_servers_have_it_all(installation: NatsInstallation) -> None:
    key = NodeKey(installation.new_key().public)
    issuer = another_program(installation)
    await issuer.ensure_revoked([key])
    await installation.server.stop()
    await asyncio.wait_for(issuer.ensure_revoked([key]), 1)
