"""The echo engine's HTTP server: as little as a test engine needs, with every write under control."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import httptools
import msgspec

from panal.node.engines.engine import Json

BODY_BYTES_MAX = 64 * 1024 * 1024


class Exchange:
    """One request and the way to answer it."""

    def __init__(self, connection: "EchoConnection", method: str, path: str, key: str, body: bytes) -> None:
        self._connection = connection
        self.method = method
        self.path = path
        self.key = key
        self.body = body
        self._chunked = False

    def json(self, value: object, status: int = 200) -> None:
        """Answer with a whole JSON."""
        data = msgspec.json.encode(value)
        head = (
            f"HTTP/1.1 {status} Echo\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self._connection.write(head.encode() + data)

    def begin_events(self) -> None:
        self._chunked = True
        self._connection.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )

    async def send(self, data: bytes, split_bytes: int = 0) -> None:
        """A piece of the event stream, perhaps in HTTP chunks and TCP segments of so few bytes."""
        size = split_bytes or len(data)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            self._connection.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await self._connection.drain()
            if split_bytes:
                await asyncio.sleep(0)

    def end_events(self) -> None:
        self._connection.write(b"0\r\n\r\n")

    def hang_up(self) -> None:
        """Close the connection in the middle."""
        self._connection.hang_up()


Handler = Callable[[Exchange], Awaitable[None]]


class EchoConnection(asyncio.Protocol):
    """One client. Its request is cancelled when it goes away."""

    def __init__(self, handler: Handler, tasks: set[asyncio.Task[None]]) -> None:
        self._handler = handler
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._key = ""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop has classes of its own
        transport.set_write_buffer_limits(high=64 * 1024)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.hang_up()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"authorization":
            self._key = value.decode("latin-1").removeprefix("Bearer ")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        exchange = Exchange(self, method, self._url.decode("latin-1"), self._key, b"".join(self._body))
        self._begin()
        self._task = asyncio.get_running_loop().create_task(self._answer(exchange))
        self._tasks.add(self._task)
        self._task.add_done_callback(self._tasks.discard)

    async def _answer(self, exchange: Exchange) -> None:
        await self._handler(exchange)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def drain(self) -> None:
        await self._writable.wait()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def decoded(body: bytes) -> Json | None:
    """A JSON object, or None."""
    try:
        return msgspec.json.decode(body, type=dict)
    except msgspec.DecodeError:
        return None
