"""Listening sockets: uvicorn's parser and our application, without uvicorn's own server and signals."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from panal.gateway.door import Door
from panal.gateway.http_protocol import SWEEP_EACH_S, HttpLimits, PanalHttpProtocol
from panal.gateway.sockets import cannot_listen

CONNECTIONS_MAX = 8192
STRANGERS_MAX = 64


class Listener:
    """One listening address: a socket that is ``bound``.

    ``start`` accepts, ``stop`` lets running answers end within a grace. ``door`` is shared by all listeners
    of a process; ``new_request_id`` names the requests that no application sees.
    """

    def __init__(
        self,
        app: Any,
        taken: socket.socket,
        limits: HttpLimits,
        tls: ssl.SSLContext | None = None,
        *,
        door: Door | None = None,
        new_request_id: Callable[[], str] = lambda: "",
    ) -> None:
        self._taken, self._tls = taken, tls
        self._config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
        )
        self._state = ServerState()
        self._limits = limits
        self._door = Door(CONNECTIONS_MAX, STRANGERS_MAX) if door is None else door
        self._new_request_id = new_request_id
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The bound port, also where 0 was asked for."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Accept connections. Raises SettingsError when another program does so on this address."""
        self._config.load()
        means = {
            "limits": self._limits,
            "door": self._door,
            "new_request_id": staticmethod(self._new_request_id),
        }
        protocol: type[PanalHttpProtocol] = type("Protocol", (PanalHttpProtocol,), means)
        loop = asyncio.get_running_loop()

        def connection() -> asyncio.Protocol:
            return protocol(config=self._config, server_state=self._state, app_state={})

        host, port = self._taken.getsockname()[:2]
        try:
            self._server = await loop.create_server(
                connection,
                sock=self._taken,
                ssl=self._tls,
                backlog=2048,
                ssl_handshake_timeout=self._limits.header_s_max if self._tls is not None else None,
            )
        except OSError as error:  # two may take an address at once, but only one listens
            raise cannot_listen(host, port, error) from error
        self._sweeper = loop.create_task(self._sweep())

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, wait for running requests, cancel what is left."""
        if self._server is None or self._sweeper is None:
            return
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        tasks = set(self._state.tasks)
        if tasks:
            _done, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=2.0)
        for connection in list(self._state.connections):
            connection.transport.close()
        self._sweeper.cancel()
        await asyncio.gather(self._sweeper, return_exceptions=True)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_EACH_S)
            now_s = loop.time()
            self._door.look(now_s)
            for connection in list(self._state.connections):
                connection.sweep(now_s)  # type: ignore[union-attr]
