"""What the server itself forbids, whatever a node's program does (SEC-27)."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest

from panal.bus.credentials import Authority, Seeds
from panal.bus.nkeys import SigningKey
from panal.core.clock import SystemClock
from panal.core.ids import GatewayId, NodeKey
from panal.protocol import subjects
from tests.support.hostile_client import hostile, is_refused
from tests.support.nats_installation import NatsInstallation

ONE = GatewayId("gw_one")


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[NatsInstallation]:
    installation = NatsInstallation(tmp_path)
    await installation.server.start()
    yield installation
    await installation.server.stop()


def as_key(key: SigningKey) -> NodeKey:
    return NodeKey(key.public)


async def test_a_node_reaches_its_own_subjects(installation: NatsInstallation) -> None:
    key = installation.new_key()
    async with hostile(installation, installation.credential(key), key) as node:
        await node.subscribe(subjects.down_all(as_key(key)))
        for subject in (
            subjects.heartbeat(as_key(key)),
            subjects.report(as_key(key)),
            subjects.frames(as_key(key), ONE),
        ):
            await node.publish(subject)
        assert not await node.refused()


FORBIDDEN_TO_PUBLISH = [
    "panal.up.{other}.heartbeat",
    "panal.up.{other}.report",
    "panal.up.{other}.frames.gw_one",
    "panal.down.{own}.run",
    "panal.down.{other}.run",
    "panal.down.{other}.cancel",
    "panal.down.{other}.present",
    "panal.fleet.changed",
    "panal.claims.{own}",
    "$SYS.REQ.CLAIMS.UPDATE",
    "$SYS.REQ.USER.INFO",
    "$SYS.REQ.SERVER.PING",
    "$JS.API.STREAM.CREATE.x",
    "_INBOX.x",
    "anything",
    "panal.absent.gw_one.{other}",
    "panal.absent.gw_one.{own}",
    "panal.down.{other}.probe",
    "panal.down.{own}.instruct",
]


@pytest.mark.parametrize("subject", FORBIDDEN_TO_PUBLISH)
async def test_a_node_may_not_publish(installation: NatsInstallation, subject: str) -> None:
    own, other = installation.new_key(), installation.new_key()
    async with hostile(installation, installation.credential(own), own) as node:
        await node.publish(subject.format(own=own.public, other=other.public))
        assert await node.refused()


FORBIDDEN_TO_HEAR = [
    "panal.down.{other}.>",
    "panal.down.{other}.run",
    "panal.down.>",
    "panal.down.*.run",
    "panal.down.*.>",
    "panal.up.>",
    "panal.up.{own}.>",
    "panal.up.*.frames.gw_one",
    "panal.up.*.heartbeat",
    "panal.fleet.changed",
    "panal.absent.gw_one.{other}",
    "panal.absent.>",
    "panal.>",
    "_INBOX.>",
    "$SYS.>",
    "$JS.API.>",
    ">",
]


@pytest.mark.parametrize("subject", FORBIDDEN_TO_HEAR)
async def test_a_node_may_not_hear(installation: NatsInstallation, subject: str) -> None:
    own, other = installation.new_key(), installation.new_key()
    async with hostile(installation, installation.credential(own), own) as node:
        await node.subscribe(subject.format(own=own.public, other=other.public))
        assert await node.refused()


async def test_a_forbidden_message_reaches_nobody(installation: NatsInstallation) -> None:
    own, other = installation.new_key(), installation.new_key()
    gateway_key = installation.new_key()
    gateway = installation.authority.gateway_credential(gateway_key.public, ONE, 600)
    async with (
        hostile(installation, gateway, gateway_key) as ears,
        hostile(installation, installation.credential(own), own) as node,
    ):
        await ears.subscribe(subjects.frames_for(ONE))
        await node.publish(subjects.frames(as_key(other), ONE), b"forged")
        await node.publish(subjects.frames(as_key(own), ONE), b"own")
        await ears.client.flush()
        assert ears.heard == [(subjects.frames(as_key(own), ONE), b"own")]


GATEWAY_MAY_NOT = [
    ("hear", "panal.up.*.frames.gw_two"),
    ("hear", "panal.up.*.frames.*"),
    ("hear", "panal.up.*.report"),
    ("hear", "panal.up.>"),
    ("hear", "panal.down.>"),
    ("hear", "$SYS.>"),
    ("publish", "panal.up.{own}.heartbeat"),
    ("publish", "panal.down.{own}.instruct"),
    ("publish", "panal.fleet.changed"),
    ("publish", "$SYS.REQ.CLAIMS.UPDATE"),
]


@pytest.mark.parametrize(("what", "subject"), GATEWAY_MAY_NOT)
async def test_a_gateway_may_not(installation: NatsInstallation, what: str, subject: str) -> None:
    key = installation.new_key()
    credential = installation.authority.gateway_credential(key.public, ONE, 600)
    async with hostile(installation, credential, key) as gateway:
        if what == "hear":
            await gateway.subscribe(subject)
        else:
            await gateway.publish(subject.format(own=key.public))
        assert await gateway.refused()


CONTROLLER_MAY_NOT = [
    ("hear", "panal.up.*.frames.gw_one"),
    ("hear", "panal.down.>"),
    ("hear", "$SYS.>"),
    ("publish", "panal.down.{own}.run"),
    ("publish", "panal.up.{own}.heartbeat"),
    ("publish", "$SYS.REQ.CLAIMS.UPDATE"),
]


@pytest.mark.parametrize(("what", "subject"), CONTROLLER_MAY_NOT)
async def test_the_controller_may_not(installation: NatsInstallation, what: str, subject: str) -> None:
    key = installation.new_key()
    credential = installation.authority.controller_credential(key.public, 600)
    async with hostile(installation, credential, key) as controller:
        if what == "hear":
            await controller.subscribe(subject)
        else:
            await controller.publish(subject.format(own=key.public))
        assert await controller.refused()


async def test_the_claims_user_may_only_update_claims(installation: NatsInstallation) -> None:
    key = installation.new_key()
    credential = installation.authority.system_credential(key.public, 60)
    async with hostile(installation, credential, key) as system:
        await system.subscribe("$SYS.>")
        assert await system.refused()


def forged(credential: str, signer: SigningKey, **changes: Any) -> str:
    """The same claims with changes, signed anew by ``signer``."""
    header, body, _ = credential.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    claims["nats"] |= changes.pop("nats", {})
    claims |= changes
    text = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    signed = f"{header}.{text}"
    return f"{signed}.{base64.urlsafe_b64encode(signer.sign(signed.encode())).rstrip(b'=').decode()}"


def scope_key(installation: NatsInstallation, role: str) -> SigningKey:
    seeds = json.loads((installation.home / "nats" / "authority.json").read_bytes())["seeds"]
    return SigningKey.from_seed(seeds[role])


WIDER: list[dict[str, Any]] = [
    {"pub": {"allow": [">"]}, "sub": {"allow": [">"]}},
    {"subs": -1, "data": -1, "payload": -1},
    {"allowed_connection_types": ["WEBSOCKET", "STANDARD"]},
]


@pytest.mark.parametrize("wider", WIDER)
async def test_a_credential_that_widens_itself_is_refused(
    installation: NatsInstallation, wider: dict[str, Any]
) -> None:
    """Even if the scoped key itself had been stolen: rights come from the template alone."""
    key = installation.new_key()
    credential = installation.credential(key)
    assert await is_refused(
        installation, forged(credential, scope_key(installation, "node"), nats=wider), key
    )
    assert not await is_refused(installation, credential, key)


async def test_a_stolen_credential_is_of_no_use_without_its_key(installation: NatsInstallation) -> None:
    key, thief = installation.new_key(), installation.new_key()
    assert await is_refused(installation, installation.credential(key), thief)


async def test_a_credential_signed_by_its_own_holder_is_refused(installation: NatsInstallation) -> None:
    key = installation.new_key()
    credential = installation.credential(key)
    assert await is_refused(installation, forged(credential, key, iss=key.public), key)
    assert await is_refused(installation, forged(credential, key), key)


async def test_another_authoritys_credential_is_refused(installation: NatsInstallation) -> None:
    key = installation.new_key()
    stranger = Authority(Seeds.create(lambda size: b"\x05" * size), {}, SystemClock())
    assert await is_refused(installation, stranger.node_credential(as_key(key), 600), key)


async def test_a_nodes_credential_cannot_be_made_by_the_gateways_key_alone(
    installation: NatsInstallation,
) -> None:
    """Signed by the gateways' scope it has a gateway's rights, not those of the account."""
    key = installation.new_key()
    signer = scope_key(installation, "gateway")
    credential = forged(installation.credential(key), signer, iss=signer.public, name="gw_one")
    async with hostile(installation, credential, key) as odd:
        await odd.publish(f"panal.up.{key.public}.heartbeat")
        assert await odd.refused()


async def test_a_message_over_the_limit_is_not_carried(installation: NatsInstallation) -> None:
    key = installation.new_key()
    async with hostile(installation, installation.credential(key), key) as node:
        assert node.client.max_payload == 1024 * 1024
        with pytest.raises(nats.errors.MaxPayloadError):
            await node.client.publish(subjects.heartbeat(as_key(key)), b"x" * (1024 * 1024 + 1))


async def test_a_node_has_a_bounded_number_of_subscriptions(installation: NatsInstallation) -> None:
    key = installation.new_key()
    async with hostile(installation, installation.credential(key), key) as node:
        for number in range(20):
            await node.client.subscribe(f"panal.down.{key.public}.x{number}")
        with pytest.raises(nats.errors.Error):
            for _ in range(3):
                await node.client.flush()
            raise nats.errors.Error(str(node.complaints)) if node.complaints else AssertionError
