"""A thin HTTP/1.1 client for engines: one request per connection at a time, bodies read as wanted.

Reading pauses when the reader of a body lags, and the socket's own buffer is kept small, so that an
engine feels a slow client soon. Connections are kept open for a moment only; one that dies before
the first byte of an answer is replaced once.
"""

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any, cast

import httptools

from panal.core.errors import EngineFailed

RECEIVE_BUFFER_BYTES = 64 * 1024
PAUSE_ABOVE_BYTES = 64 * 1024
RESUME_BELOW_BYTES = 16 * 1024
IDLE_S_MAX = 2.0
IDLE_CONNECTIONS_MAX = 64
"""More are never idle than requests ran at a time; each saves a connect, which costs more than a request."""
HEADER_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine listens. ``prefix`` is a path in front of every route, without a final slash."""

    host: str
    port: int
    prefix: str = ""
    tls: bool = False
    api_key: str = field(default="", repr=False)


class _Connection(asyncio.Protocol):
    """One connection and the answer that is being read from it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.lost = False
        self.reason = "the engine closed the connection"
        self.idle_since_s = 0.0
        self._loop = asyncio.get_running_loop()
        self.begin()

    def begin(self) -> None:
        """Be ready for the next answer."""
        self._parser: Any = httptools.HttpResponseParser(self)
        self._chunks: list[bytes] = []
        self._buffered_bytes = 0
        self._header_bytes = 0
        self._paused = False
        self._framed = False
        self._keep_alive = False
        self._waiter: asyncio.Future[None] | None = None
        self.status = 0
        self.complete = False
        self.any_byte = False
        self.ends_here = False
        self.content_type = ""

    # --- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has classes of its own

    def data_received(self, data: bytes) -> None:
        if self.complete:
            self.abort("the engine sent bytes after its answer")
            return
        self.any_byte = True
        if not self.status:
            self._header_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.abort(f"the engine's answer is not HTTP: {type(error).__name__}")
            return
        if not self.status and self._header_bytes > HEADER_BYTES_MAX:
            self.abort("the engine's headers are too large")
            return
        if self._buffered_bytes > PAUSE_ABOVE_BYTES and not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if error is not None:
            self.reason = f"the connection to the engine broke: {error}"
        elif self.status and not self._framed:
            self.complete = True  # an answer without a length ends with its connection
        self._wake()

    # --- from the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"content-type":
            self.content_type = value.decode("latin-1")
        elif lower in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)
        self._buffered_bytes += len(data)

    def on_message_complete(self) -> None:
        self.complete = True
        self._keep_alive = bool(self._parser.should_keep_alive())

    # --- for the reader

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def headers(self) -> None:
        """Return when the status is known. Raises EngineFailed."""
        while not self.status:
            if self.lost:
                raise EngineFailed(self.reason)
            await self._wait()

    async def read(self) -> bytes:
        """All bytes that are there, at least one; b"" at the end of the answer. Raises EngineFailed."""
        while not self._chunks:
            if self.complete:
                return b""
            if self.lost:
                raise EngineFailed(self.reason)
            await self._wait()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered_bytes = 0
        if self._paused and self.transport is not None and not self.lost:
            self._paused = False
            self.transport.resume_reading()
        return data

    @property
    def reusable(self) -> bool:
        return (
            self.complete
            and not self.lost
            and not self._chunks
            and self.transport is not None
            and not self.transport.is_closing()
            and self._keep_alive
        )

    def abort(self, reason: str) -> None:
        """Drop the connection now: the engine sees a reset."""
        if not self.lost:
            self.reason = reason
        self.lost = True
        if self.transport is not None:
            self.transport.abort()
        self._wake()


class EngineResponse:
    """An answer whose headers are here. Use it in ``async with``: leaving early drops the connection."""

    def __init__(self, client: "EngineClient", connection: _Connection) -> None:
        self._client = client
        self._connection = connection
        self.status = connection.status
        self.content_type = connection.content_type

    async def read(self) -> bytes:
        """The next bytes of the body, b"" at its end. Raises EngineFailed."""
        return await self._connection.read()

    async def whole(self, bytes_max: int) -> bytes:
        """The rest of the body. Raises EngineFailed when it is larger than ``bytes_max``."""
        parts: list[bytes] = []
        size = 0
        while data := await self._connection.read():
            parts.append(data)
            size += len(data)
            if size > bytes_max:
                raise EngineFailed("the engine's answer is too large")
        return b"".join(parts)

    def ends_here(self) -> None:
        """Only the last bytes of the framing are missing: the connection may be kept for them."""
        self._connection.ends_here = True

    async def __aenter__(self) -> "EngineResponse":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.give_back(self._connection)


class EngineClient:
    """Requests to one engine. Nothing is opened before the first request."""

    def __init__(self, address: EngineAddress, *, connect_s_max: float = 3.0) -> None:
        self.address = address
        self._connect_s_max = connect_s_max
        self._idle: list[_Connection] = []
        self._closed = False
        host = f"[{address.host}]" if ":" in address.host else address.host
        lines = [
            f"Host: {host}:{address.port}",
            "Content-Type: application/json",
            "Accept: text/event-stream, application/json",
        ]
        if address.api_key:
            lines.append(f"Authorization: Bearer {address.api_key}")
        self._head = "\r\n".join(lines)

    async def post(self, path: str, body: bytes) -> EngineResponse:
        """Send and wait for the headers, without a limit of its own. Raises EngineFailed."""
        return await self._request("POST", path, body)

    async def get(self, path: str) -> EngineResponse:
        return await self._request("GET", path, b"")

    async def _request(self, method: str, path: str, body: bytes) -> EngineResponse:
        first = f"{method} {self.address.prefix}{path} HTTP/1.1"
        message = f"{first}\r\n{self._head}\r\nContent-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
        connection = self._take_idle()
        if connection is not None:
            try:
                return await self._exchange(connection, message)
            except EngineFailed:
                if connection.any_byte:
                    raise
        return await self._exchange(await self._connect(), message)

    async def _exchange(self, connection: _Connection, message: bytes) -> EngineResponse:
        try:
            assert connection.transport is not None
            connection.transport.write(message)
            await connection.headers()
        except BaseException:
            connection.abort("the request was given up")
            raise
        return EngineResponse(self, connection)

    async def _connect(self) -> _Connection:
        if self._closed:
            raise EngineFailed("the engine is stopped")
        address = self.address
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context() if address.tls else None
        try:
            async with asyncio.timeout(self._connect_s_max):
                _, connection = await loop.create_connection(
                    _Connection, address.host, address.port, ssl=context
                )
        except (OSError, TimeoutError) as error:
            raise EngineFailed(f"the engine does not take connections: {error or 'timeout'}") from error
        assert connection.transport is not None
        raw = connection.transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        return connection

    def _take_idle(self) -> _Connection | None:
        now_s = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and now_s - connection.idle_since_s < IDLE_S_MAX:
                connection.begin()
                return connection
            connection.abort("idle too long")
        return None

    def give_back(self, connection: _Connection) -> None:
        """Keep the connection if its answer was read to the end, else drop it."""
        keep = connection.reusable or (
            connection.ends_here and not connection.complete and not connection.lost
        )
        if not keep or self._closed or len(self._idle) >= IDLE_CONNECTIONS_MAX:
            connection.abort("the answer was given up")
            return
        connection.idle_since_s = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def close(self) -> None:
        """Drop all connections that are not in use and open no new one."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort("closed")
