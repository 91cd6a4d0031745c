"""The whole HTTP application on a real socket, over a memory bus with one node that answers everything."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from panal.core.clock import SystemClock
from panal.core.errors import NotAuthenticated
from panal.core.ids import IdSource
from panal.core.principals import Principal, Role
from panal.gateway.app import App
from panal.gateway.door import Door
from panal.gateway.endpoints import Call, Endpoint, build
from panal.gateway.http_protocol import HttpLimits
from panal.gateway.inference import Inference
from panal.gateway.listener import Listener
from panal.gateway.sockets import bound
from panal.protocol.messages import Event, RunAttempt, TokenUsage
from tests.support.path import Path, ScriptedNode, principal

HANG_S_MAX = 20.0
KEY = b"Authorization: Bearer good\r\n"
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
ANSWER = b'{"ok":true}'


class Keys:
    """One good key."""

    def principal_of(self, authorization: bytes | None) -> Principal:
        if authorization != b"Bearer good":
            raise NotAuthenticated
        return principal()


@dataclass
class Reply:
    """One answer as it was on the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


@dataclass
class Edge:
    """A listening application; ``answered`` counts what reached the node."""

    port: int
    door: Door
    path: Path
    answered: list[RunAttempt] = field(default_factory=list)
    held: list[RunAttempt] = field(default_factory=list)
    hold: bool = False

    async def connect(self, address: str = "127.0.0.1") -> "Raw":
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(address, 0), limit=2**24
        )
        return Raw(reader, writer)

    async def ask(self, *pieces: bytes, pause_s: float = 0.0, address: str = "127.0.0.1") -> list[Reply]:
        """Send the pieces on a new connection; everything that was answered until the server hung up."""
        raw = await self.connect(address)
        reading = asyncio.create_task(raw.rest())  # from the beginning: a reset would take what is unread
        try:
            for piece in pieces:
                with contextlib.suppress(ConnectionError):
                    await raw.send(piece)
                await asyncio.sleep(pause_s)
            return replies(await reading)
        finally:
            reading.cancel()
            await raw.close()

    def release(self) -> None:
        for attempt in self.held:
            self.answer(attempt)
        self.held.clear()

    def answer(self, attempt: RunAttempt) -> None:
        usage = TokenUsage(prompt_tokens=5, completion_tokens=1)
        data = b"data: [DONE]\n\n" if attempt.stream else ANSWER
        event = Event(data=data, text="x", token_ids=[1], tokens=1, finish="stop", usage=usage)
        self.path.nodes[0].send(attempt, event)


class Raw:
    """A connection without any protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(HANG_S_MAX):
            self.writer.write(data)
            await self.writer.drain()

    async def until(self, mark: bytes) -> bytes:
        async with asyncio.timeout(HANG_S_MAX):
            return await self.reader.readuntil(mark)

    async def rest(self) -> bytes:
        """Everything until the server hangs up; a reset ends it as well."""
        found = b""
        async with asyncio.timeout(HANG_S_MAX):
            with contextlib.suppress(ConnectionError):
                while piece := await self.reader.read(65536):
                    found += piece
        return found

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def replies(data: bytes) -> list[Reply]:
    """The answers in these bytes."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        if "content-length" in headers:
            size = int(headers["content-length"])
            body, data = data[:size], data[size:]
        else:
            body, data = data, b""
        found.append(Reply(status, headers, body))
    return found


def post(
    body: bytes = CHAT,
    *,
    head: bytes = KEY,
    path: bytes = b"/v1/chat/completions",
    method: bytes = b"POST",
    last: bool = True,
) -> bytes:
    """A whole request with a length; ``last``: the connection ends after it."""
    close = b"Connection: close\r\n" if last else b""
    return (
        b"%b %b HTTP/1.1\r\nHost: a\r\n%b%b" % (method, path, head, close)
        + b"Content-Length: %d\r\n\r\n" % len(body)
        + body
    )


async def _thing(call: Call) -> dict[str, str]:
    return call.read(dict)


async def _mistake(_call: Call) -> None:
    raise ZeroDivisionError("a mistake of ours")


ENDPOINTS = [
    Endpoint("POST", "/api/v1/things", Role.USER, _thing, "Takes anything"),
    Endpoint("POST", "/api/v1/mistakes", Role.USER, _mistake, "Always fails"),
]


@contextlib.asynccontextmanager
async def edge(
    limits: HttpLimits, door: Door | None = None, entropy: Callable[[int], bytes] | None = None
) -> AsyncIterator[Edge]:
    """Listen on loopback until the end of the block."""
    counter = iter(range(1, 2**60))
    ids = IdSource(SystemClock(), entropy or (lambda count: next(counter).to_bytes(count, "big")))
    path = await Path().start(1)
    path.nodes[0].beat(slots=4096)
    await path.settled()
    keys = Keys()
    app = App(Inference(path.dispatcher, keys, ids, path.clock, 60.0), build(ENDPOINTS, keys, ids), ids)
    door = Door(4096, 1000) if door is None else door
    listener = Listener(app, bound("127.0.0.1", 0), limits, door=door, new_request_id=ids.request)
    await listener.start()
    made = Edge(listener.port, door, path)
    answering = asyncio.create_task(_answer_all(made, path.nodes[0]))
    try:
        yield made
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        await listener.stop(1.0)


async def _answer_all(made: Edge, node: ScriptedNode) -> None:
    while True:
        attempt = await node.runs.get()
        made.answered.append(attempt)
        if made.hold:
            made.held.append(attempt)
        else:
            made.answer(attempt)
