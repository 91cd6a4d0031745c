"""A small HTTP proxy on loopback that opens tunnels (CONNECT), and only to hosts that it was told of."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class ConnectProxy:
    """Runs in a thread of its own.

    ``hosts`` it knows, each being this machine; ``login`` it wants, empty: none; ``answers`` bytes that it
    says instead of opening anything. ``asked``: every target that somebody wanted to reach.
    """

    hosts: tuple[str, ...]
    login: str = ""
    answers: bytes | None = None
    port: int = 0
    asked: list[str] = field(default_factory=list)
    opened: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _ready: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self.port))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _version = head[0].split(" ")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            self.asked.append(target)
            answer = self._answer(method, target, headers)
            writer.write(answer)
            if self.answers is None and answer.startswith(b"HTTP/1.1 200"):
                await self._tunnel(int(target.rpartition(":")[2]), reader, writer)
            elif not answer:
                await reader.read()  # says nothing until the client has had enough
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # a cancelled handler would be told of on the log, though it ends with the proxy
        finally:
            writer.close()

    def _answer(self, method: str, target: str, headers: dict[str, str]) -> bytes:
        if self.answers is not None:
            return self.answers
        if self.login and headers.get("proxy-authorization", "") != self.login.lower():
            return b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n<html>"
        if method != "CONNECT" or target.rpartition(":")[0] not in self.hosts:
            return b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
        return b"HTTP/1.1 200 Connection established\r\nVia: 1.1 test\r\n\r\n"

    async def _tunnel(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        self.opened += 1
        pumps = [
            asyncio.create_task(_pump(reader, inner_writer)),
            asyncio.create_task(_pump(inner_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            inner_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@contextlib.contextmanager
def connect_proxy(
    *hosts: str, login: str = "", answers: bytes | None = None, port: int = 0
) -> Iterator[ConnectProxy]:
    """``port`` 0: a free one."""
    made = ConnectProxy(hosts, login, answers, port)
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    assert made._ready.wait(10.0)
    try:
        yield made
    finally:
        made._loop.call_soon_threadsafe(made._loop.stop)
        thread.join(10.0)
