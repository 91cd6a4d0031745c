"""Opens the transport to a bus server: aiofastnet where it is there, else the event loop's own."""

import asyncio
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from panal.bus.tunnel import open_tunnel
from panal.core.errors import SettingsError
from panal.core.proxies import STRAIGHT, Proxies, Proxy

DEFAULT_PORT = 4222

P = TypeVar("P", bound=asyncio.Protocol)


@dataclass(frozen=True)
class Server:
    """One address of the bus."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "Server":
        """``tls://host:port`` or ``nats://host:port``. Raises SettingsError."""
        parts = urlsplit(url)
        try:
            port = parts.port or DEFAULT_PORT
        except ValueError:
            port = 0
        if parts.scheme not in ("tls", "nats") or not parts.hostname or not port:
            raise SettingsError(f"'{url}' is not the address of a bus server: write tls://host:port.")
        return cls(parts.hostname, port)


@dataclass(frozen=True)
class Servers:
    """Where the bus is. All addresses lead to the same installation; ``tls`` None means no encryption.

    Only what is encrypted goes through a proxy.
    """

    addresses: tuple[Server, ...]
    tls: ssl.SSLContext | None
    proxies: Proxies = STRAIGHT

    @classmethod
    def at(cls, urls: list[str], ca_pem: str = "", proxies: Proxies = STRAIGHT) -> "Servers":
        """With ``ca_pem`` everything is encrypted and only servers of that CA are spoken to.

        Raises SettingsError for addresses or a CA that cannot be used.
        """
        if not urls:
            raise SettingsError("No address of a bus server is given.")
        addresses = tuple(Server.parse(url) for url in urls)
        return cls(addresses, client_tls(ca_pem) if ca_pem else None, proxies)

    def proxy_of(self, server: Server) -> Proxy | None:
        """The proxy that leads to this server. Raises SettingsError when it is none that can be used."""
        return None if self.tls is None else self.proxies.of(server.host, server.port)


def client_tls(ca_pem: str) -> ssl.SSLContext:
    """Trusts that CA only and checks host names. Raises SettingsError if it is no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=ca_pem)
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError("The certificate of the bus's authority cannot be read.") from error
    return context


async def open_transport(
    make_protocol: Callable[[], P],
    server: Server,
    tls: ssl.SSLContext | None,
    proxy: Proxy | None = None,
) -> tuple[asyncio.Transport, P]:
    """Connect, with TLS from the first byte, through a tunnel if there is a proxy.

    Raises OSError (ssl.SSLError is one), BusError when the proxy is in the way.
    """
    loop = asyncio.get_running_loop()
    where: dict[str, Any] = {"host": server.host, "port": server.port}
    tunnel = None
    if proxy is not None:
        tunnel = await open_tunnel(proxy, server.host, server.port)
        where = {"sock": tunnel, "server_hostname": server.host}
    try:
        return await _connect(loop, make_protocol, tls, where)
    except BaseException:
        if tunnel is not None:
            tunnel.close()
        raise


async def _connect(
    loop: asyncio.AbstractEventLoop,
    make_protocol: Callable[[], P],
    tls: ssl.SSLContext | None,
    where: dict[str, Any],
) -> tuple[asyncio.Transport, P]:
    if sys.platform == "linux":
        try:
            import aiofastnet
        except ImportError:
            pass
        else:
            # uvloop's TLS may map a fresh 256 KiB buffer for every read; this one does not.
            opened: tuple[asyncio.Transport, P] = await aiofastnet.create_connection(
                loop, make_protocol, ssl=tls, **where
            )
            return opened
    return await loop.create_connection(make_protocol, ssl=tls, **where)
