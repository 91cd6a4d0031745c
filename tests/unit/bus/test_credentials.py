"""What the authority signs, and what it refuses to sign."""

import base64
import hashlib
import json
from typing import Any

import pytest

from panal.bus.credentials import CREDENTIAL_S_MAX, Authority, Seeds, expires_utc_s
from panal.bus.nkeys import KeyKind, SigningKey, verify
from panal.core.clock import ManualClock
from panal.core.errors import BadRequest, ProtocolError
from panal.core.ids import GatewayId, NodeKey


class Counted:
    """Entropy that repeats in every run."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, size: int) -> bytes:
        self.calls += 1
        return hashlib.sha256(b"%d" % self.calls).digest()[:size]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def authority(clock: ManualClock) -> Authority:
    return Authority(Seeds.create(Counted()), {}, clock)


NODE = NodeKey(SigningKey(KeyKind.USER, b"\x07" * 32).public)


def claims(jwt: str) -> dict[str, Any]:
    header, body, signature = (
        base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in jwt.split(".")
    )
    assert json.loads(header) == {"typ": "JWT", "alg": "ed25519-nkey"}
    decoded: dict[str, Any] = json.loads(body)
    assert verify(decoded["iss"], jwt.rpartition(".")[0].encode(), signature)
    return decoded


def test_the_operator_signs_itself_and_both_accounts(authority: Authority) -> None:
    operator = claims(authority.operator_jwt())
    assert operator["iss"] == operator["sub"]
    assert operator["nats"]["system_account"] == authority.system_account
    for jwt, account in (
        (authority.system_account_jwt(), authority.system_account),
        (authority.account_jwt(), authority.account),
    ):
        assert claims(jwt)["iss"] == operator["sub"]
        assert claims(jwt)["sub"] == account


def test_the_operators_claims_stay_the_same_so_that_a_server_can_reload(
    authority: Authority, clock: ManualClock
) -> None:
    before = authority.operator_jwt(), authority.system_account_jwt()
    clock.advance(1000)
    assert (authority.operator_jwt(), authority.system_account_jwt()) == before


def test_a_nodes_credential_brings_no_rights_of_its_own(authority: Authority) -> None:
    body = claims(authority.node_credential(NODE, 3600))
    assert body["sub"] == NODE
    assert body["nats"] == {"type": "user", "version": 2, "issuer_account": authority.account}
    scopes = {scope["role"]: scope for scope in claims(authority.account_jwt())["nats"]["signing_keys"]}
    assert body["iss"] == scopes["node"]["key"]
    template = scopes["node"]["template"]
    assert template["pub"]["allow"] == ["panal.up.{{subject()}}.>"]
    assert template["sub"]["allow"] == ["panal.down.{{subject()}}.>"]
    assert template["allowed_connection_types"] == ["STANDARD"]
    assert template["payload"] == 1024 * 1024


def test_every_scope_has_lists_so_that_empty_never_means_everything(authority: Authority) -> None:
    for scope in claims(authority.account_jwt())["nats"]["signing_keys"]:
        assert scope["template"]["pub"]["allow"]
        assert scope["template"]["sub"]["allow"]
    system = claims(authority.system_credential(NODE, 60))["nats"]
    assert system["pub"]["allow"] == ["$SYS.REQ.CLAIMS.UPDATE"]
    assert system["sub"]["allow"] == [f"panal.claims.{NODE}"]


def test_no_role_shares_a_signing_key(authority: Authority) -> None:
    account = claims(authority.account_jwt())
    keys = [scope["key"] for scope in account["nats"]["signing_keys"]]
    assert len({*keys, authority.account, authority.system_account}) == len(keys) + 2


def test_a_credential_ends_and_never_later_than_a_day(authority: Authority, clock: ManualClock) -> None:
    assert expires_utc_s(authority.node_credential(NODE, 3600)) == int(clock.utc_seconds()) + 3600
    longest = authority.controller_credential(NODE, 1e9)
    assert expires_utc_s(longest) == int(clock.utc_seconds() + CREDENTIAL_S_MAX)


@pytest.mark.parametrize("text", ["*", ">", "", "U" * 56, "node_1", NODE.lower(), NODE + ".>"])
def test_only_real_keys_get_a_credential(authority: Authority, text: str) -> None:
    with pytest.raises(BadRequest):
        authority.node_credential(NodeKey(text), 3600)
    with pytest.raises(BadRequest):
        authority.revoke(text, 0)


@pytest.mark.parametrize("name", ["*", ">", "a.b", "", "gw one"])
def test_a_gateways_name_cannot_widen_its_rights(authority: Authority, name: str) -> None:
    with pytest.raises(ProtocolError):
        authority.gateway_credential(NODE, GatewayId(name), 60)


def test_a_revocation_stands_in_the_accounts_claims_and_only_moves_forward(
    authority: Authority, clock: ManualClock
) -> None:
    now = int(clock.utc_seconds())
    assert claims(authority.revoke(NODE, now))["nats"]["revocations"] == {NODE: now}
    assert claims(authority.revoke(NODE, now - 50))["nats"]["revocations"] == {NODE: now}
    assert claims(authority.account_jwt())["nats"]["revocations"] == {NODE: now}


def test_revocations_older_than_any_credential_are_forgotten(
    authority: Authority, clock: ManualClock
) -> None:
    authority.revoke(NODE, int(clock.utc_seconds()))
    clock.advance(8 * 24 * 3600)
    other = SigningKey(KeyKind.USER, b"\x08" * 32).public
    authority.revoke(other, int(clock.utc_seconds()))
    assert list(authority.revocations) == [other]


def test_a_login_gives_a_fresh_credential_at_every_connect(authority: Authority, clock: ManualClock) -> None:
    login = authority.gateway_login(GatewayId("gw_1"), 600, Counted())
    first = login.credential()
    clock.advance(500)
    second = login.credential()
    assert claims(first)["sub"] == claims(second)["sub"]
    assert claims(first)["name"] == "gw_1"
    assert expires_utc_s(second) == expires_utc_s(first) + 500


@pytest.mark.parametrize("text", ["", "a.b.c", "x", "a.e30.c"])
def test_what_is_no_credential_has_no_end(text: str) -> None:
    with pytest.raises(ValueError):
        expires_utc_s(text)


def test_seeds_do_not_show_themselves() -> None:
    seeds = Seeds.create(Counted())
    assert repr(seeds) == str(seeds) == "Seeds(...)"
