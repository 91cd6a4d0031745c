"""How a machine becomes a node: JSON over HTTPS, before it has a place on the bus.

1. GET /join/v1/authority -> Authority. Nothing secret is sent before its key matched the token's pin.
2. POST /join/v1/nodes with JoinRequest -> Admission.
3. Later, when a credential ran out: POST /join/v1/credentials with CredentialRequest -> Admission.

A join token reads ``pnl1_<id>_<secret>_<pin>``: 10 and 32 characters of ``[a-z2-7]``, and the first 32
hex digits of SHA-256 over the CA's public key (DER, SubjectPublicKeyInfo).
"""

import re

import msgspec

from panal.core.errors import BadRequest

_TOKEN = re.compile(r"pnl1_([a-z2-7]{10})_([a-z2-7]{32})_([0-9a-f]{32})")

SIGNATURE_AGE_S_MAX = 300.0


class JoinToken(msgspec.Struct, frozen=True):
    """The three parts of a token as typed by a person."""

    id: str
    secret: str
    pin: str

    @classmethod
    def parse(cls, text: str) -> "JoinToken":
        """Raises BadRequest; the message does not repeat the text."""
        match = _TOKEN.fullmatch(text.strip())
        if match is None:
            raise BadRequest(
                "That is not a join token (pnl1_..._..._...). Make one with 'panal tokens create'."
            )
        return cls(*match.groups())

    def text(self) -> str:
        return f"pnl1_{self.id}_{self.secret}_{self.pin}"


class Authority(msgspec.Struct, omit_defaults=True):
    """``server_pem`` is a certificate of the gateway that another CA made; ``server_signature`` (base64 of
    ECDSA by the CA's key over ``vouched_text``) says that the installation means it."""

    ca_pem: str
    server_pem: str = ""
    server_signature: str = ""


def vouched_text(server_pem: str) -> bytes:
    """What the CA signs to vouch for a certificate that is not its own."""
    return b"panal gateway certificate\n" + server_pem.encode()


class JoinRequest(msgspec.Struct, kw_only=True):
    """``signature``: base64 of Ed25519 by the node key over ``signed_text("join", ...)``."""

    token: str
    node_key: str
    issued_utc_s: int
    signature: str
    host_name: str
    machine: str = ""
    """SHA-256 of the machine id, to notice copies; never the id itself."""
    agent_version: str = ""
    protocol_version: int = 1


class CredentialRequest(msgspec.Struct, kw_only=True):
    """``signature`` over ``signed_text("credential", ...)``."""

    node: str
    node_key: str
    issued_utc_s: int
    signature: str


class Admission(msgspec.Struct, kw_only=True):
    """``membership`` pending: ask again for a credential until an operator approved the node."""

    node: str
    membership: str
    credential: str = ""
    bus_urls: list[str] = []
    ca_pem: str = ""
    name: str = ""
    node_class: str = "desktop"
    site: str = ""
    country: str = ""
    data_class: str = "public"


def signed_text(purpose: str, subject: str, node_key: str, issued_utc_s: int) -> bytes:
    """What a node signs; ``subject`` is the token's id or the node's id."""
    return f"panal-{purpose}-v1\n{subject}\n{node_key}\n{issued_utc_s}".encode()
