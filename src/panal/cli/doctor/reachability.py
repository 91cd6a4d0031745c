"""Looks over the network: names, the gateway and its clock, the bus with this machine's own credential."""

import asyncio
import http.client
import ipaddress
import os
import random
import socket
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from panal.bus.authority_file import authority_path, load_authority
from panal.bus.connector import Servers
from panal.bus.credentials import Login
from panal.bus.nats_client import NatsClient
from panal.bus.nkeys import SigningKey
from panal.bus.tunnel import https_connection
from panal.cli.addresses import Addresses, host_of
from panal.cli.home import Home
from panal.core.clock import SystemClock
from panal.core.errors import BusError, PanalError, SettingsError
from panal.core.proxies import Proxies
from panal.identity.certificates import create_or_load_ca
from panal.node.enrolled import EnrolledNode

TIMEOUT_S = 4.0
ANSWER_BYTES_MAX = 4096
OWN_CREDENTIAL_S = 60.0


async def names(advertised: Sequence[str], addresses: Addresses) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Advertised names that have an address, and those that have none."""
    wanted = [name for name in map(host_of, advertised or addresses.names) if not _is_address(name)]
    found, missing = [], []
    for name in dict.fromkeys(wanted):
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, TimeoutError, UnicodeError):
            missing.append(name)
        else:
            found.append(name)
    return tuple(found), tuple(missing)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class _Health(msgspec.Struct):
    utc_s: float | None = None


def gateway(url: str, ca_pem: str, proxies: Proxies) -> tuple[str, float | None]:
    """Why it does not answer (empty: it does), and how far this machine's clock is ahead of its."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context(cadata=ca_pem or None)
        try:
            connection = https_connection(host, parts.port or 443, TIMEOUT_S, context, proxies)
        except SettingsError as error:
            return error.message, None
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
    clock = SystemClock()
    try:
        connection.connect()
        asked_s = clock.utc_seconds()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        content = answer.read(ANSWER_BYTES_MAX)
        heard_s = clock.utc_seconds()
        health = msgspec.json.decode(content, type=_Health)
    except BusError as error:  # of the proxy
        return error.message, None
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {url} is not believed: {error.verify_message}", None
    except (OSError, http.client.HTTPException) as error:
        return f"the gateway at {url} does not answer ({error})", None
    except msgspec.DecodeError:
        return f"what answers at {url} is no panal gateway", None
    finally:
        connection.close()
    return "", None if health.utc_s is None else (asked_s + heard_s) / 2 - health.utc_s


def proxy_used(url: str, proxies: Proxies) -> str:
    """The proxy on the way to the gateway, as people may see it; empty: there is none."""
    parts = urlsplit(url)
    try:
        proxy = proxies.of(parts.hostname or "", parts.port or 443)
    except SettingsError:
        return ""  # the looks through it have said so
    return "" if proxy is None else str(proxy)


async def bus_of_installation(home: Home, addresses: Addresses) -> str | None:
    """Why the bus does not accept the installation's own credential; empty: it does."""
    clock = SystemClock()
    file = authority_path(home.path)
    if not file.exists() or not (home.path / "ca" / "ca.pem").exists():
        return None
    try:
        authority = load_authority(file, clock)
        ca_pem = create_or_load_ca(home.path, clock).pem
        login = authority.controller_login(OWN_CREDENTIAL_S, os.urandom)
        return await _connected(Servers.at(list(addresses.bus_urls), ca_pem), login)
    except PanalError as error:
        return error.message


async def bus_of_node(enrolled: EnrolledNode, proxies: Proxies) -> str | None:
    """The same for a node; None while it has no credential."""
    if not enrolled.credential:
        return None
    try:
        key = SigningKey.from_seed(enrolled.key_seed)
        servers = Servers.at(enrolled.bus_urls, enrolled.ca_pem, proxies)
    except (PanalError, ValueError) as error:
        return f"the bus cannot be asked: {error}"
    return await _connected(servers, Login(lambda: enrolled.credential, key.sign))


class _Quiet:
    """Failures reach the caller as exceptions."""

    def on_connection(self, connected: bool) -> None:
        pass

    def on_refused(self, reason: str) -> None:
        pass

    def on_violation(self, text: str) -> None:
        pass


async def _connected(servers: Servers, login: Login) -> str:
    client = NatsClient(servers, login, name="doctor", randomness=random.random)
    try:
        await client.start(_Quiet(), TIMEOUT_S)
    except BusError as error:
        return error.message
    await client.close()
    return ""
