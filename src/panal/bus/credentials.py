"""The authority of the bus: makes the operator's and accounts' claims and the credentials of users.

A credential is a JWT in the NATS form (version 2, Ed25519). It names a public key, is no secret by
itself, and is of use only to who can sign the server's nonce with the private half.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from panal.bus.nkeys import KeyKind, SigningKey, is_public_key
from panal.bus.rights import PAYLOAD_BYTES_MAX, BusRole, template
from panal.core.clock import Clock
from panal.core.errors import BadRequest
from panal.core.ids import GatewayId, NodeKey
from panal.protocol.subjects import checked_token

CREDENTIAL_S_MAX = 24 * 3600.0
"""No credential of a user lives longer."""

_CLAIMS_SINCE_UTC_S = 1_796_000_000
"""When what the operator says of itself and of the system account last changed: raise it with a change.

Fixed, because a server that is asked to reload refuses everything if its operator's claims differ.
"""

_REVOCATION_KEPT_S = 7 * 24 * 3600
CLAIMS_UPDATE = "$SYS.REQ.CLAIMS.UPDATE"
CLAIMS_ANSWERS = "panal.claims"
"""Prefix of the answers to claims updates, inside the system account."""


class Seeds(msgspec.Struct, frozen=True, kw_only=True):
    """Every secret of the authority, as seed text."""

    operator: str
    system: str
    account: str
    node: str
    gateway: str
    controller: str

    @classmethod
    def create(cls, entropy: Callable[[int], bytes]) -> "Seeds":
        operator = SigningKey.create(KeyKind.OPERATOR, entropy).seed()
        names = ("system", "account", "node", "gateway", "controller")
        accounts = {name: SigningKey.create(KeyKind.ACCOUNT, entropy).seed() for name in names}
        return cls(operator=operator, **accounts)

    def __repr__(self) -> str:
        return "Seeds(...)"


@dataclass(frozen=True)
class Login:
    """How a client proves who it is: asked for at every connect, so a fresh credential is used at once."""

    credential: Callable[[], str]
    sign: Callable[[bytes], bytes]


class Authority:
    """Signs for the operator of one installation. Revocations it knows go into every account claim."""

    def __init__(self, seeds: Seeds, revocations: Mapping[str, int], clock: Clock) -> None:
        """``revocations``: public key -> UTC second. Raises ValueError for seeds that are none."""
        self._clock = clock
        self._operator = SigningKey.from_seed(seeds.operator)
        self._system = SigningKey.from_seed(seeds.system)
        self._account = SigningKey.from_seed(seeds.account)
        self._roles = {role: SigningKey.from_seed(getattr(seeds, role.value)) for role in BusRole}
        self._revocations = dict(revocations)

    @property
    def system_account(self) -> str:
        return self._system.public

    @property
    def account(self) -> str:
        return self._account.public

    @property
    def revocations(self) -> dict[str, int]:
        """A copy: public key -> UTC second."""
        return dict(self._revocations)

    def operator_jwt(self) -> str:
        claims = {"type": "operator", "version": 2, "system_account": self._system.public}
        return self._signed(
            self._operator, self._operator.public, "panal", claims, issued=_CLAIMS_SINCE_UTC_S
        )

    def system_account_jwt(self) -> str:
        claims = _account_claims([], {})
        return self._signed(self._operator, self._system.public, "system", claims, issued=_CLAIMS_SINCE_UTC_S)

    def account_jwt(self) -> str:
        """The account of all traffic, with a scoped signing key for each role and all revocations."""
        keys = [
            {"kind": "user_scope", "key": key.public, "role": role.value, "template": template(role)}
            for role, key in self._roles.items()
        ]
        claims = _account_claims(keys, self._revocations)
        return self._signed(self._operator, self._account.public, "panal", claims)

    def node_credential(self, public_key: NodeKey, valid_s: float) -> str:
        """For a node's key. Raises BadRequest if that is not a user's public key."""
        return self._user(BusRole.NODE, public_key, "node", valid_s)

    def gateway_credential(self, public_key: str, gateway: GatewayId, valid_s: float) -> str:
        """For one gateway process: it hears only the frames that are sent to its own id."""
        return self._user(BusRole.GATEWAY, public_key, checked_token(gateway), valid_s)

    def controller_credential(self, public_key: str, valid_s: float) -> str:
        return self._user(BusRole.CONTROLLER, public_key, "controller", valid_s)

    def system_credential(self, public_key: str, valid_s: float) -> str:
        """May send claims updates and hear their answers; nothing else."""
        claims = {
            "type": "user",
            "version": 2,
            "pub": {"allow": [CLAIMS_UPDATE]},
            "sub": {"allow": [f"{CLAIMS_ANSWERS}.{public_key}"]},
            "subs": 4,
            "data": -1,
            "payload": PAYLOAD_BYTES_MAX,
            "allowed_connection_types": ["STANDARD"],
        }
        return self._signed(self._system, _checked(public_key), "claims", claims, valid_s)

    def revoke(self, public_key: str, at_utc_s: int) -> str:
        """Forbid every credential of that key made up to then; returns the new account JWT.

        Only the server makes it true: push the claims (see claims_update) and keep the revocations.
        """
        at = max(at_utc_s, self._revocations.get(_checked(public_key), 0))
        self.merge_revocations({public_key: at})
        return self.account_jwt()

    def merge_revocations(self, revocations: Mapping[str, int]) -> None:
        """Take over what others revoked. Entries older than any credential can live are forgotten."""
        merged = dict(self._revocations)
        for key, at in revocations.items():
            merged[key] = max(at, merged.get(key, 0))
        oldest = self._clock.utc_seconds() - _REVOCATION_KEPT_S
        self._revocations = {key: at for key, at in merged.items() if at >= oldest}

    def gateway_login(self, gateway: GatewayId, valid_s: float, entropy: Callable[[int], bytes]) -> Login:
        """A new key for a gateway process and fresh credentials for it whenever they are asked for."""
        key = SigningKey.create(KeyKind.USER, entropy)
        return Login(lambda: self.gateway_credential(key.public, gateway, valid_s), key.sign)

    def controller_login(self, valid_s: float, entropy: Callable[[int], bytes]) -> Login:
        key = SigningKey.create(KeyKind.USER, entropy)
        return Login(lambda: self.controller_credential(key.public, valid_s), key.sign)

    def _user(self, role: BusRole, public_key: str, name: str, valid_s: float) -> str:
        # Limits and rights stay out: the server takes them from the scope's template, and refuses a
        # credential that brings its own.
        claims = {"type": "user", "version": 2, "issuer_account": self._account.public}
        return self._signed(self._roles[role], _checked(public_key), name, claims, valid_s)

    def _signed(
        self,
        key: SigningKey,
        subject: str,
        name: str,
        claims: dict[str, Any],
        valid_s: float | None = None,
        issued: int | None = None,
    ) -> str:
        now = int(self._clock.utc_seconds()) if issued is None else issued
        body: dict[str, Any] = {"iat": now, "iss": key.public, "name": name, "sub": subject, "nats": claims}
        if valid_s is not None:
            body["exp"] = now + int(min(valid_s, CREDENTIAL_S_MAX))
        body["jti"] = base64.b32encode(hashlib.sha256(_json(body)).digest()).decode().rstrip("=")
        header = _base64(_json({"typ": "JWT", "alg": "ed25519-nkey"}))
        signed = header + b"." + _base64(_json(body))
        return (signed + b"." + _base64(key.sign(signed))).decode()


def expires_utc_s(credential: str) -> int:
    """When a credential ends, read without checking its signature. Raises ValueError if it is none."""
    try:
        body = credential.split(".")[1]
        return int(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"])
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError("that is not a credential of the bus") from error


def life_left_s(credential: str, clock: Clock) -> float:
    """Seconds until a credential ends; 0 when it has ended or is none."""
    try:
        return max(0.0, expires_utc_s(credential) - clock.utc_seconds())
    except ValueError:
        return 0.0


def _account_claims(signing_keys: list[dict[str, Any]], revocations: Mapping[str, int]) -> dict[str, Any]:
    unlimited = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    claims: dict[str, Any] = {"type": "account", "version": 2, "limits": unlimited | {"wildcards": True}}
    if signing_keys:
        claims["signing_keys"] = signing_keys
    if revocations:
        claims["revocations"] = dict(revocations)
    return claims


def _checked(public_key: str) -> str:
    # A key such as '*' would widen the template to the subjects of every node.
    if not is_public_key(public_key, KeyKind.USER):
        raise BadRequest("That is not the public key of a user of the bus.", param="node_key")
    return public_key


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
