"""The machine's side of joining (protocol.joining), over HTTPS with the standard library.

Blocking on purpose: it runs before the agent, or in a thread of it, a few times a day.
"""

import base64
import hashlib
import http.client
import platform
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from panal import __version__
from panal.bus.nkeys import KeyKind, SigningKey
from panal.bus.tunnel import https_connection
from panal.core.clock import Clock
from panal.core.errors import BusError, NotAllowed, SettingsError
from panal.core.proxies import STRAIGHT, Proxies
from panal.node.enrolled import EnrolledNode
from panal.protocol.joining import (
    Admission,
    Authority,
    CredentialRequest,
    JoinRequest,
    JoinToken,
    signed_text,
    vouched_text,
)

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 256 * 1024
MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


@dataclass(frozen=True)
class Machine:
    """What a machine says of itself when it joins."""

    host_name: str
    digest: str


def this_machine() -> Machine:
    """Host name and a digest of the machine id (empty where there is none)."""
    for file in MACHINE_ID_FILES:
        try:
            text = file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text:
            return Machine(
                socket.gethostname(), hashlib.sha256(f"panal-machine\n{text}".encode()).hexdigest()
            )
    return Machine(socket.gethostname() or platform.node(), "")


def join(
    url: str,
    token_text: str,
    machine: Machine,
    clock: Clock,
    entropy: Callable[[int], bytes],
    proxies: Proxies = STRAIGHT,
) -> EnrolledNode:
    """Become a node of the installation at ``url``, through the proxy where one leads there.

    The server is believed only if its CA's key matches the pin in the token; nothing secret is sent
    before. Raises BadRequest (token), SettingsError (address, other server), NotAllowed, BusError.
    """
    token = JoinToken.parse(token_text)
    authority = _authority(url, token.pin, proxies)
    ca_pem = authority.ca_pem
    key = SigningKey.create(KeyKind.USER, entropy)
    issued_utc_s = int(clock.utc_seconds())
    request = JoinRequest(
        token=token_text.strip(),
        node_key=key.public,
        issued_utc_s=issued_utc_s,
        signature=_signature(key, "join", token.id, issued_utc_s),
        host_name=machine.host_name,
        machine=machine.digest,
        agent_version=__version__,
    )
    admission = _post(url, "/join/v1/nodes", request, authority, proxies)
    return EnrolledNode(
        node=admission.node,
        name=admission.name,
        key_seed=key.seed(),
        url=url,
        pin=token.pin,
        ca_pem=admission.ca_pem or ca_pem,
        bus_urls=admission.bus_urls,
        credential=admission.credential,
        node_class=admission.node_class,
        site=admission.site,
        country=admission.country,
        data_class=admission.data_class,
    )


def fresh_credential(enrolled: EnrolledNode, clock: Clock, proxies: Proxies = STRAIGHT) -> EnrolledNode:
    """The same node with a new credential; an empty one while an operator has not approved it.

    Raises NotAllowed (revoked, unknown), SettingsError, BusError (not reachable now).
    """
    key = SigningKey.from_seed(enrolled.key_seed)
    issued_utc_s = int(clock.utc_seconds())
    request = CredentialRequest(
        node=enrolled.node,
        node_key=key.public,
        issued_utc_s=issued_utc_s,
        signature=_signature(key, "credential", enrolled.node, issued_utc_s),
    )
    authority = _authority(enrolled.url, enrolled.pin, proxies)
    admission = _post(enrolled.url, "/join/v1/credentials", request, authority, proxies)
    return msgspec.structs.replace(
        enrolled,
        credential=admission.credential,
        bus_urls=admission.bus_urls or enrolled.bus_urls,
        ca_pem=admission.ca_pem or enrolled.ca_pem,
        node_class=admission.node_class,
        data_class=admission.data_class,
    )


def _signature(key: SigningKey, purpose: str, subject: str, issued_utc_s: int) -> str:
    return base64.b64encode(key.sign(signed_text(purpose, subject, key.public, issued_utc_s))).decode()


def _authority(url: str, pin: str, proxies: Proxies) -> Authority:
    """The server's CA, believed because its key has the pin, and a certificate that this CA vouches for.

    The connection itself proves nothing yet, so nothing but the question is sent over it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the pin below is the check; only a public certificate is read
    status, body = _exchange(url, "GET", "/join/v1/authority", b"", context, proxies)
    if status != 200:
        raise SettingsError(f"{url} is not a panal gateway (it answered {status}).")
    try:
        authority = msgspec.json.decode(body, type=Authority)
    except msgspec.DecodeError:
        raise SettingsError(f"{url} is not a panal gateway.") from None
    if _pin(authority.ca_pem) != pin:
        raise SettingsError(
            f"The server at {url} is not the one that this join token was made for: its CA has another key. "
            "Check the address, or ask for a new token."
        )
    if authority.server_pem and not _vouched(authority):
        raise SettingsError(
            f"The server at {url} shows a certificate that its installation does not vouch for."
        )
    return authority


def _vouched(authority: Authority) -> bool:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = x509.load_pem_x509_certificate(authority.ca_pem.encode()).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        signature = base64.b64decode(authority.server_signature, validate=True)
        key.verify(signature, vouched_text(authority.server_pem), ec.ECDSA(hashes.SHA256()))
    except (ValueError, InvalidSignature):
        return False
    return True


def _believing(authority: Authority) -> ssl.SSLContext:
    """Believes servers of the CA, or else the one certificate that the CA vouches for. Checks the name."""
    if not authority.server_pem:
        return ssl.create_default_context(cadata=authority.ca_pem)
    try:
        context = ssl.create_default_context(cadata=authority.server_pem)
    except ssl.SSLError as error:
        raise SettingsError("The gateway's certificate cannot be read.") from error
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _pin(ca_pem: str) -> str:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    try:
        public_key = x509.load_pem_x509_certificate(ca_pem.encode()).public_key()
    except ValueError:
        return ""
    der = public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()[:32]


def _post(
    url: str,
    path: str,
    request: JoinRequest | CredentialRequest,
    authority: Authority,
    proxies: Proxies,
) -> Admission:
    content = msgspec.json.encode(request)
    status, body = _exchange(url, "POST", path, content, _believing(authority), proxies)
    if status in (200, 201):
        return msgspec.json.decode(body, type=Admission)
    message = _message(body) or f"the gateway answered {status}"
    if status in (400, 401, 403, 404, 409):
        raise NotAllowed(message)
    raise BusError(f"Joining is not possible now: {message}")


def _exchange(
    url: str, method: str, path: str, body: bytes, context: ssl.SSLContext, proxies: Proxies
) -> tuple[int, bytes]:
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if scheme != "https" or not host:
        raise SettingsError(f"'{url}' is not the address of a gateway: write https://host:port.")
    connection = https_connection(host, port or 443, TIMEOUT_S, context, proxies)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_BYTES_MAX)
    except ssl.SSLCertVerificationError as error:
        raise SettingsError(
            f"The certificate of {url} is not valid for this address or not of the expected CA: "
            f"{error.verify_message}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise BusError(f"The gateway at {url} cannot be reached: {error}") from error
    finally:
        connection.close()


def _message(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""
