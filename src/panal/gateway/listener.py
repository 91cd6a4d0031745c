"""Listening sockets: uvicorn's parser and our application, without uvicorn's own server and signals."""

import asyncio
import ssl
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from panal.core.errors import SettingsError
from panal.gateway.http_protocol import SWEEP_EACH_S, HttpLimits, PanalHttpProtocol


class Listener:
    """One listening address. ``start`` binds, ``stop`` lets running answers end within a grace."""

    def __init__(
        self,
        app: Any,
        host: str,
        port: int,
        limits: HttpLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(limits.keep_alive_s_max),
        )
        self._state = ServerState()
        self._limits = limits
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The bound port, also where 0 was asked for."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Bind and accept. Raises SettingsError for a port in use or an address that is not ours."""
        self._config.load()
        protocol: type[PanalHttpProtocol] = type("Protocol", (PanalHttpProtocol,), {"limits": self._limits})
        loop = asyncio.get_running_loop()

        def connection() -> asyncio.Protocol:
            return protocol(config=self._config, server_state=self._state, app_state={})

        try:
            self._server = await loop.create_server(
                connection, self._host, self._port, ssl=self._tls, backlog=2048
            )
        except OSError as error:
            raise SettingsError(
                f"Cannot listen on {self._host} port {self._port}: {error.strerror or error}. "
                "Choose another port or address, or end the program that uses it."
            ) from error
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
            for connection in list(self._state.connections):
                connection.sweep(now_s)  # type: ignore[union-attr]
