"""What a gateway process has before it reaches anybody: its addresses, certificates, and who may come in."""

import contextlib
import os
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass

from panal.cli.addresses import Addresses, addresses_of
from panal.cli.descriptors import room_for_connections
from panal.cli.home import Home
from panal.cli.http_edge import listeners_of, sockets_of
from panal.cli.renewal import Renewal
from panal.cli.server_tls import ServerTls
from panal.core.clock import SystemClock
from panal.core.errors import PanalError
from panal.core.ids import IdSource
from panal.core.settings import Settings
from panal.gateway.door import Door
from panal.gateway.listener import Listener
from panal.gateway.waiting_room import WaitingRoom
from panal.identity.certificates import CertificateAuthority, create_or_load_ca

PROBE_S_MAX = 1.0
LEAVE_S_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Front:
    """``shared``: other gateway processes have the same ports."""

    settings: Settings
    clock: SystemClock
    ids: IdSource
    addresses: Addresses
    sockets: tuple[socket.socket, socket.socket]
    ca: CertificateAuthority
    tls: ServerTls
    door: Door
    renewal: Renewal
    shared: bool

    @classmethod
    def of(cls, home: Home, settings: Settings, stack: AsyncExitStack, *, shared: bool) -> "Front":
        """The sockets are closed by ``stack``. Raises SettingsError."""
        clock = SystemClock()
        addresses = addresses_of(settings)
        # Before anything is made: a port in use must leave no trace.
        sockets = sockets_of(settings, addresses, stack, shared=shared)
        ca = create_or_load_ca(home.path, clock)
        tls = ServerTls(home.path, settings.gateway, addresses, ca, clock)
        door = Door(room_for_connections(settings.gateway.connections_max), settings.gateway.strangers_max)
        ids = IdSource(clock, os.urandom)
        return cls(settings, clock, ids, addresses, sockets, ca, tls, door, Renewal(tls.look), shared)

    def listeners(self, app: object, sockets: tuple[socket.socket, socket.socket]) -> list[Listener]:
        return listeners_of(app, sockets, self.settings, self.tls.context, self.door, self.ids)


class Vestibule:
    """Answers on the front's ports while the gateway behind them waits for its store or bus.

    Not while another process of this host listens there: that one may be well, and would lose half of
    its clients to us.
    """

    def __init__(self, front: Front) -> None:
        self._front = front
        self._room = WaitingRoom(front.clock.utc_seconds, front.ids.request)
        self._listeners: list[Listener] = []

    async def open(self, cause: PanalError) -> None:
        """Say so from now on. Raises SettingsError when another program took the address."""
        self._room.cause = cause
        if self._listeners or (self._front.shared and _somebody_listens(self._front.sockets[0])):
            return
        plain, secure = self._front.sockets
        self._listeners = self._front.listeners(self._room, (plain.dup(), secure.dup()))
        for listener in self._listeners:
            await listener.start()

    async def close(self) -> None:
        """Who connects between this and the start of the real listeners waits in the sockets' queue."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            await listener.stop(LEAVE_S_MAX)


def _somebody_listens(taken: socket.socket) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(taken.getsockname()[:2], PROBE_S_MAX):
        return True
    return False
