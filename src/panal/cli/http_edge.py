"""The addresses at which a gateway process takes requests, and the limits that hold there."""

import socket
import ssl
from contextlib import AsyncExitStack
from typing import Any

from panal.cli.addresses import Addresses
from panal.core.ids import IdSource
from panal.core.settings import Settings
from panal.gateway.door import Door
from panal.gateway.http_protocol import HttpLimits
from panal.gateway.listener import Listener
from panal.gateway.sockets import bound


def sockets_of(
    settings: Settings, addresses: Addresses, stack: AsyncExitStack, *, shared: bool
) -> tuple[socket.socket, socket.socket]:
    """Those of plain HTTP and of HTTPS, bound and closed by ``stack``. Raises SettingsError."""
    gateway = settings.gateway
    plain = stack.enter_context(bound(gateway.http_host, gateway.http_port, shared=shared))
    return plain, stack.enter_context(bound(addresses.listen_host, gateway.https_port, shared=shared))


def listeners_of(
    app: Any,
    sockets: tuple[socket.socket, socket.socket],
    settings: Settings,
    tls: ssl.SSLContext,
    door: Door,
    ids: IdSource,
) -> list[Listener]:
    """On both sockets, through one door."""
    plain, secure = sockets
    limits = http_limits(settings)
    return [
        Listener(app, plain, limits, door=door, new_request_id=ids.request),
        Listener(app, secure, limits, tls, door=door, new_request_id=ids.request),
    ]


def http_limits(settings: Settings) -> HttpLimits:
    gateway = settings.gateway
    return HttpLimits(
        header_s_max=gateway.header_s_max,
        body_gap_s_max=gateway.body_gap_s_max,
        body_s_max=gateway.body_s_max,
        keep_alive_s_max=gateway.keep_alive_s_max,
        header_bytes_max=gateway.header_bytes_max,
        headers_max=gateway.headers_max,
        body_bytes_max=gateway.body_bytes_max,
        write_stall_s_max=gateway.write_stall_s_max,
    )
