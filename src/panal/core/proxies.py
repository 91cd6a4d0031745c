"""Which HTTP proxy leads to an address: the setting, else the usual variables; never for loopback. Pure.

Only tunnels (CONNECT) are asked of a proxy, and TLS goes end to end through them: a proxy sees where a
connection leads and how much is sent, nothing else, and is believed nothing.
"""

import base64
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from panal.core.errors import SettingsError

NONE = "none"
"""As the setting: no proxy, whatever the environment says."""

DEFAULT_PORT = 3128
PROXY_VARIABLES = ("https_proxy", "HTTPS_PROXY")
SPARED_VARIABLES = ("no_proxy", "NO_PROXY")

_FORM = "write http://host:port or http://user:password@host:port"


@dataclass(frozen=True, slots=True)
class Proxy:
    """``authorization`` is the value of Proxy-Authorization; empty: none is sent. It is in no repr."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> "Proxy":
        """``http://[user:password@]host[:port]``; the scheme may be left out.

        Raises ValueError, the end of a sentence that repeats nothing of the text: it may hold a password.
        """
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            port = parts.port or DEFAULT_PORT
        except ValueError:
            raise ValueError(_FORM) from None
        if parts.scheme != "http":
            raise ValueError(f"only proxies that are spoken to by plain HTTP can be used: {_FORM}")
        if not parts.hostname or not parts.hostname.isprintable() or parts.path.strip("/") or parts.query:
            raise ValueError(_FORM)
        if parts.username is None:
            return cls(parts.hostname, port)
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        return cls(parts.hostname, port, "Basic " + base64.b64encode(login).decode())

    def __str__(self) -> str:
        """For people: without user and password."""
        return f"{bracketed(self.host)}:{self.port}"


def proxy_fault(text: str) -> str | None:
    """What is wrong with the setting, or None."""
    if text in ("", NONE):
        return None
    try:
        Proxy.parse(text)
    except ValueError as error:
        return f"is no proxy: {error}"
    return None


@dataclass(frozen=True, slots=True)
class Proxies:
    """``given``: the proxy's address as somebody wrote it, ``source`` where; ``spared``: hosts without it."""

    given: str = field(default="", repr=False)
    source: str = ""
    spared: tuple[str, ...] = ()

    def of(self, host: str, port: int) -> Proxy | None:
        """The proxy that leads there; None: straight. Raises SettingsError when it cannot be used."""
        if not self.given or is_loopback(host) or any(_spares(each, host, port) for each in self.spared):
            return None
        try:
            return Proxy.parse(self.given)
        except ValueError as error:
            raise SettingsError(f"The proxy in {self.source} cannot be used: {error}.") from None


STRAIGHT = Proxies()
"""No proxy at all."""


def proxies_of(setting: str, no_proxy: Sequence[str], environment: Mapping[str, str]) -> Proxies:
    """The setting ``node.proxy``, or HTTPS_PROXY where it is empty; NO_PROXY counts beside ``no_proxy``."""
    if setting == NONE:
        return STRAIGHT
    found = [(environment[name], name) for name in PROXY_VARIABLES if environment.get(name)]
    if setting:
        found.insert(0, (setting, "node.proxy"))
    if not found:
        return STRAIGHT
    listed = [*no_proxy, *",".join(environment.get(name, "") for name in SPARED_VARIABLES).split(",")]
    return Proxies(*found[0], tuple(each.strip().lower() for each in listed if each.strip()))


def is_loopback(host: str) -> bool:
    """Whether the host is this machine by its very name."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


def bracketed(host: str) -> str:
    """As it stands before a colon and a port."""
    return f"[{host}]" if ":" in host else host


def _spares(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY holds for a host: ``*``, a name and all below it, an address or a network,
    each but the first with or without a port."""
    if entry == "*":
        return True
    name = host.lower().rstrip(".")
    address = _address(name)
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            pass  # no network, but perhaps an address with a port
    wanted, colon, number = entry.rpartition(":")
    if colon and number.isdecimal():
        if number != str(port):
            return False
        entry = wanted
    entry = entry.strip("[]")
    if address is not None:
        return _address(entry) == address
    entry = entry.removeprefix("*").strip(".")
    return bool(entry) and (name == entry or name.endswith(f".{entry}"))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
