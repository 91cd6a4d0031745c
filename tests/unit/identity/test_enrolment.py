"""A machine becomes a node, over a real store and with a stand-in for the node key's signature."""

import asyncio
import base64
import hashlib
import os
from dataclasses import dataclass

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import BadRequest, CapacityError, Conflict, NotAllowed, StoreError
from panal.core.ids import IdSource, NodeKey
from panal.core.nodes import DataClass, Membership, NodeClass
from panal.identity.enrolment import Enrolment, plain_name
from panal.identity.join_tokens import TokenWish, new_token
from panal.identity.seams import Advertised
from panal.protocol.joining import SIGNATURE_AGE_S_MAX, CredentialRequest, JoinRequest, signed_text
from panal.store import Store
from tests.support.databases import KINDS, fresh_store
from tests.support.rows import key_row, node_key

PEER = "192.0.2.7"


def signature_of(key: str, signed: bytes) -> bytes:
    return hashlib.sha512(key.encode() + signed).digest()


def verify(key: NodeKey, signed: bytes, signature: bytes) -> bool:
    return signature == signature_of(key, signed)


class Issuer:
    def __init__(self) -> None:
        self.given = []

    def node_credential(self, key: NodeKey, valid_s: int) -> str:
        self.given.append((key, valid_s))
        return f"credential of {key[:4]}"

    async def revoke(self, key: NodeKey) -> None: ...


@dataclass
class Office:
    """An enrolment and what it works with."""

    store: Store
    clock: ManualClock
    issuer: Issuer
    enrolment: Enrolment
    told: list[str]

    async def token(self, **wish) -> str:
        ids = IdSource(self.clock, os.urandom)
        token, record = new_token(
            TokenWish(**wish),
            creator=key_row().principal(),
            pin="0" * 32,
            ids=ids,
            clock=self.clock,
            entropy=os.urandom,
        )
        async with self.store.transaction() as tx:
            await tx.join_tokens.add(record)
        return token.text()

    def request(self, token: str, number: int = 1, /, **changes) -> JoinRequest:
        key = changes.pop("node_key", node_key(number))
        issued = changes.pop("issued_utc_s", int(self.clock.utc_seconds()))
        signed = signed_text("join", token.split("_")[1], key, issued)
        fields = {
            "token": token,
            "node_key": key,
            "issued_utc_s": issued,
            "signature": base64.b64encode(signature_of(key, signed)).decode(),
            "host_name": "DESK-17.example.org",
            "machine": f"{number:064x}",
        }
        return JoinRequest(**{**fields, **changes})

    def credential_request(self, node: str, number: int = 1, **changes) -> CredentialRequest:
        key = node_key(number)
        issued = changes.pop("issued_utc_s", int(self.clock.utc_seconds()))
        signed = signed_text("credential", node, key, issued)
        fields = {
            "node": node,
            "node_key": key,
            "issued_utc_s": issued,
            "signature": base64.b64encode(signature_of(key, signed)).decode(),
        }
        return CredentialRequest(**{**fields, **changes})

    async def decide(self, node: str, membership: Membership, expected: Membership) -> None:
        async with self.store.transaction() as tx:
            assert await tx.nodes.decide(node, membership, "", expected=expected)


@pytest.fixture(params=KINDS)
async def office(request, tmp_path):
    async with fresh_store(request.param, tmp_path) as store:
        clock, issuer, told = ManualClock(), Issuer(), []
        enrolment = Enrolment(
            store,
            issuer,
            verify,
            lambda: Advertised(("tls://bus.example.org:4222",), "CA"),
            ids=IdSource(clock, os.urandom),
            clock=clock,
            notify=lambda: told.append("changed"),
        )
        yield Office(store, clock, issuer, enrolment, told)


async def test_a_good_token_makes_a_node_of_what_the_token_says(office):
    token = await office.token(
        node_class=NodeClass.WORKSTATION, site="Madrid", country="ES", data_class=DataClass.CONFIDENTIAL
    )
    admission = await office.enrolment.admit(office.request(token), PEER)
    assert (admission.name, admission.membership) == ("desk-17", "active")
    assert (admission.node_class, admission.site, admission.country) == ("workstation", "Madrid", "ES")
    assert admission.data_class == "confidential"
    assert admission.bus_urls == ["tls://bus.example.org:4222"]
    assert admission.ca_pem == "CA"
    assert admission.credential
    assert office.issuer.given == [(node_key(1), 3600)]
    assert office.told == ["changed"]
    async with office.store.reading() as tx:
        (event,) = await tx.audit.list("tnt_default")
    assert (event.action, event.target) == ("node.join", admission.node)


async def test_a_used_token_is_useless_to_another_machine(office):
    token = await office.token()
    await office.enrolment.admit(office.request(token, 1), PEER)
    with pytest.raises(NotAllowed, match="used up"):
        await office.enrolment.admit(office.request(token, 2), PEER)


async def test_the_same_machine_asking_again_gets_the_same_answer_for_no_use(office):
    token = await office.token(uses=2)
    first = await office.enrolment.admit(office.request(token, 1), PEER)
    again = await office.enrolment.admit(office.request(token, 1), PEER)
    assert first == again
    await office.enrolment.admit(office.request(token, 2), PEER)
    assert office.told == ["changed", "changed"]


async def test_a_key_that_is_enrolled_is_told_what_to_do(office):
    first = await office.enrolment.admit(office.request(await office.token()), PEER)
    with pytest.raises(Conflict, match=f"desk-17.*{first.node}.*remove the agent's key file"):
        await office.enrolment.admit(office.request(await office.token()), PEER)


async def test_a_copied_key_on_another_machine_is_refused(office):
    token = await office.token(uses=2)
    await office.enrolment.admit(office.request(token), PEER)
    with pytest.raises(Conflict, match="another machine"):
        await office.enrolment.admit(office.request(token, machine="f" * 64), PEER)


async def test_machines_of_one_name_get_names_of_their_own(office):
    token = await office.token(uses=5)
    names = [
        (await office.enrolment.admit(office.request(token, number), PEER)).name for number in range(1, 6)
    ]
    assert names == ["desk-17", *(f"desk-17-{number}" for number in range(2, 6))]


async def test_ten_machines_at_once_with_a_token_for_four(office):
    token = await office.token(uses=4)
    answers = await asyncio.gather(
        *(
            office.enrolment.admit(office.request(token, number), f"192.0.2.{number}")
            for number in range(1, 11)
        ),
        return_exceptions=True,
    )
    refused = [answer for answer in answers if isinstance(answer, NotAllowed)]
    assert (len(answers) - len(refused), len(refused)) == (4, 6)
    assert len({answer.name for answer in answers if answer not in refused}) == 4


async def test_a_node_that_must_be_approved_gets_no_credential_until_it_is(office):
    admission = await office.enrolment.admit(office.request(await office.token(approve=True)), PEER)
    assert (admission.membership, admission.credential) == ("pending", "")
    asked = await office.enrolment.fresh_credential(office.credential_request(admission.node), PEER)
    assert (asked.membership, asked.credential) == ("pending", "")
    await office.decide(admission.node, Membership.ACTIVE, Membership.PENDING)
    asked = await office.enrolment.fresh_credential(office.credential_request(admission.node), PEER)
    assert asked.membership == "active"
    assert asked.credential


@pytest.mark.parametrize("membership", [Membership.CORDONED, Membership.DRAINING])
async def test_a_cordoned_node_stays_on_the_bus(office, membership):
    node = (await office.enrolment.admit(office.request(await office.token()), PEER)).node
    await office.decide(node, membership, Membership.ACTIVE)
    asked = await office.enrolment.fresh_credential(office.credential_request(node), PEER)
    assert asked.membership == membership.value
    assert asked.credential


async def test_a_revoked_node_gets_nothing_and_cannot_join_with_its_key(office):
    token = await office.token()
    node = (await office.enrolment.admit(office.request(token), PEER)).node
    await office.decide(node, Membership.REVOKED, Membership.ACTIVE)
    office.issuer.given.clear()
    with pytest.raises(NotAllowed, match="revoked"):
        await office.enrolment.fresh_credential(office.credential_request(node), PEER)
    with pytest.raises(NotAllowed, match="revoked"):
        await office.enrolment.admit(office.request(token), PEER)
    with pytest.raises(NotAllowed, match="revoked"):
        await office.enrolment.admit(office.request(await office.token()), PEER)
    assert office.issuer.given == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"token": "pnl1_nonsense"}, BadRequest),
        ({"signature": "AAAA"}, BadRequest),
        ({"signature": "not base64!"}, BadRequest),
        ({"signature": base64.b64encode(bytes(64)).decode()}, NotAllowed),
        ({"node_key": "Uabc"}, BadRequest),
        ({"node_key": "X" + "A" * 55}, BadRequest),
        ({"machine": "my machine"}, BadRequest),
        ({"host_name": "x" * 256}, BadRequest),
        ({"protocol_version": 0}, BadRequest),
    ],
)
async def test_a_bad_request_uses_nothing_up(office, change, error):
    token = await office.token()
    with pytest.raises(error):
        await office.enrolment.admit(office.request(token, **change), PEER)
    await office.enrolment.admit(office.request(token), PEER)


@pytest.mark.parametrize("drift_s", [-SIGNATURE_AGE_S_MAX - 2, SIGNATURE_AGE_S_MAX + 2])
async def test_a_stale_or_early_signature_is_refused_and_the_clock_is_named(office, drift_s):
    token = await office.token()
    issued = int(office.clock.utc_seconds() + drift_s)
    with pytest.raises(NotAllowed, match="clock"):
        await office.enrolment.admit(office.request(token, issued_utc_s=issued), PEER)


async def test_a_signature_for_one_purpose_is_not_good_for_another(office):
    token = await office.token()
    join = office.request(token)
    node = (await office.enrolment.admit(join, PEER)).node
    with pytest.raises(NotAllowed, match="signature"):
        await office.enrolment.fresh_credential(
            office.credential_request(node, signature=join.signature), PEER
        )


async def test_a_key_gets_no_credential_of_another_node(office):
    token = await office.token(uses=2)
    first = (await office.enrolment.admit(office.request(token, 1), PEER)).node
    await office.enrolment.admit(office.request(token, 2), PEER)
    with pytest.raises(NotAllowed, match="not known here under this key"):
        await office.enrolment.fresh_credential(office.credential_request(first, 2), PEER)
    with pytest.raises(NotAllowed, match="not known here under this key"):
        await office.enrolment.fresh_credential(office.credential_request("node_none", 2), PEER)


async def test_expired_and_revoked_tokens_say_so_but_only_to_who_has_the_secret(office):
    token = await office.token(life_s=60)
    office.clock.advance(60)
    with pytest.raises(NotAllowed, match="expired"):
        await office.enrolment.admit(office.request(token), PEER)
    parts = token.split("_")
    guessed = "_".join([parts[0], parts[1], "a" * 32, parts[3]])
    with pytest.raises(NotAllowed, match="not known here"):
        await office.enrolment.admit(office.request(guessed), PEER)


async def test_guessing_is_slowed_down_for_that_address_alone(office):
    token = await office.token()
    parts = token.split("_")
    guessed = "_".join([parts[0], parts[1], "a" * 32, parts[3]])
    for _ in range(10):
        with pytest.raises(NotAllowed):
            await office.enrolment.admit(office.request(guessed), PEER)
    with pytest.raises(CapacityError) as caught:
        await office.enrolment.admit(office.request(token), PEER)
    assert caught.value.retry_after_s == 60
    await office.enrolment.admit(office.request(token), "192.0.2.8")


async def test_a_store_that_is_away_is_not_the_machines_fault(office, monkeypatch):
    def away():
        raise StoreError("away")

    token = await office.token()
    with monkeypatch.context() as patch:
        patch.setattr(office.store, "transaction", away)
        for _ in range(12):
            with pytest.raises(StoreError):
                await office.enrolment.admit(office.request(token), PEER)
    await office.enrolment.admit(office.request(token), PEER)


async def test_errors_never_repeat_the_token(office):
    token = await office.token()
    await office.enrolment.admit(office.request(token), PEER)
    secret = token.split("_")[2]
    for request in (office.request(token, 2), office.request(token, machine="f" * 64)):
        with pytest.raises((NotAllowed, Conflict)) as caught:
            await office.enrolment.admit(request, PEER)
        assert secret not in caught.value.message


@pytest.mark.parametrize(
    ("host_name", "name"),
    [("DESK.local", "desk"), ("Büro PC!", "b-ro-pc"), ("", "node"), ("...", "node"), ("x" * 200, "x" * 63)],
)
def test_host_names_become_plain_names(host_name, name):
    assert plain_name(host_name) == name
