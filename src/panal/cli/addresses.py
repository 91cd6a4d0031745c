"""Which addresses an installation binds, and which it tells others (D16)."""

import ipaddress
import socket
from dataclasses import dataclass

from panal.core.errors import SettingsError
from panal.core.settings import Settings

LOOPBACK = "127.0.0.1"
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


@dataclass(frozen=True)
class Addresses:
    """``listen_host`` is bound for HTTPS and the bus; ``names`` stand in the certificate, the
    ``advertised_host`` in the address that nodes join by. ``bus_urls``: where gateways find it."""

    http_url: str
    advertised_host: str
    https_url: str
    listen_host: str
    local_bus_url: str
    bus_urls: tuple[str, ...]
    advertised_bus_urls: tuple[str, ...]
    names: tuple[str, ...]


def addresses_of(settings: Settings) -> Addresses:
    """Raises SettingsError when others could not be told an address."""
    gateway, nats_port = settings.gateway, settings.bus.nats_port
    listen = gateway.listen or LOOPBACK
    advertised = [host_of(entry) for entry in gateway.advertise] or _reachable(listen)
    local = LOOPBACK if listen in ANYWHERE else listen
    names = tuple(dict.fromkeys(["localhost", LOOPBACK, local, *advertised]))
    local_bus_url = f"tls://{_in_url(local)}:{nats_port}"
    elsewhere = settings.bus.urls
    return Addresses(
        http_url=f"http://{gateway.http_host}:{gateway.http_port}",
        advertised_host=advertised[0],
        https_url=f"https://{_in_url(advertised[0])}:{gateway.https_port}",
        listen_host=listen,
        local_bus_url=local_bus_url,
        bus_urls=elsewhere or (local_bus_url,),
        advertised_bus_urls=elsewhere or tuple(f"tls://{_in_url(host)}:{nats_port}" for host in advertised),
        names=names,
    )


def _reachable(listen: str) -> list[str]:
    """What others use for a bound address; for 'everywhere' the host's name must do."""
    if listen not in ANYWHERE:
        return [listen]
    name = socket.getfqdn()
    if not name or name.startswith("localhost"):
        raise SettingsError(
            f"'gateway.listen' is {listen}, so 'gateway.advertise' must say by which address nodes "
            "reach this machine."
        )
    return [name]


def host_of(entry: str) -> str:
    """HOST of HOST or HOST:PORT."""
    try:
        return str(ipaddress.ip_address(entry))
    except ValueError:
        return entry.rsplit(":", 1)[0].strip("[]") if ":" in entry else entry


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
