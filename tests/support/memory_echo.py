"""The echo engine without sockets: its own answers, through the real dialect, in one event loop."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import msgspec

from panal.core.errors import EngineFailed
from panal.core.requests import Route
from panal.node.engines.dialect import Dialect
from panal.node.engines.echo_engine import EchoEngine, EchoOptions
from panal.node.engines.echo_http import EchoConnection, Exchange
from panal.node.engines.engine import Delta, EngineCall, EngineFacts, Json, Resume
from panal.node.engines.http_engine import HttpEngine
from panal.node.engines.http_stream import EngineAddress, EngineClient
from panal.node.engines.open_message import vllm_message
from panal.node.engines.token_ids import TokenIdsDialect


class MemoryExchange(Exchange):
    """One request of the echo engine whose bytes stay in memory; a turn of the loop passes per event."""

    def __init__(self, path: str, body: bytes) -> None:
        super().__init__(EchoConnection(_nobody, set()), "POST", path, "", body)
        self.status = 200
        self.head = asyncio.Event()
        self.pieces: asyncio.Queue[bytes | EngineFailed] = asyncio.Queue()

    def json(self, value: object, status: int = 200) -> None:
        self.status = status
        self.pieces.put_nowait(msgspec.json.encode(value))
        self.end_events()
        self.head.set()

    def begin_events(self) -> None:
        self.head.set()

    async def send(self, data: bytes, split_bytes: int = 0) -> None:
        size = split_bytes or len(data)
        for start in range(0, len(data), size):
            self.pieces.put_nowait(data[start : start + size])
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def end_events(self) -> None:
        self.pieces.put_nowait(b"")

    def hang_up(self) -> None:
        self.pieces.put_nowait(EngineFailed("the engine closed the connection"))
        self.head.set()


async def _nobody(exchange: Exchange) -> None:
    """The connection of a memory exchange never receives a request."""
    del exchange


class MemoryResponse:
    """What EngineClient.post gives, over a MemoryExchange."""

    def __init__(self, exchange: MemoryExchange, task: "asyncio.Task[None]") -> None:
        self._exchange = exchange
        self._task = task
        self.status = exchange.status
        self.content_type = ""

    async def read(self) -> bytes:
        piece = await self._exchange.pieces.get()
        if isinstance(piece, EngineFailed):
            raise piece
        return piece

    async def whole(self, bytes_max: int) -> bytes:
        del bytes_max
        data = b""
        while piece := await self.read():
            data += piece
        return data

    def ends_here(self) -> None: ...

    async def __aenter__(self) -> "MemoryResponse":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()


class MemoryClient(EngineClient):
    """Requests that reach an EchoEngine by a call."""

    def __init__(self, engine: EchoEngine) -> None:
        super().__init__(EngineAddress("memory", 1))
        self._engine = engine
        self._running: set[asyncio.Task[None]] = set()

    async def post(self, path: str, body: bytes) -> MemoryResponse:  # type: ignore[override]
        exchange = MemoryExchange(path, body)
        task = asyncio.get_running_loop().create_task(self._engine.handle(exchange))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await exchange.head.wait()
        except BaseException:
            task.cancel()
            raise
        return MemoryResponse(exchange, task)


class MemoryEcho:
    """Implements Engine as far as attempts use it."""

    def __init__(
        self,
        *,
        dialect: Dialect | None = None,
        resume: Resume = Resume.TOKEN_IDS,
        options: EchoOptions | None = None,
    ) -> None:
        self.echo = EchoEngine(options or EchoOptions(model="m"))
        self._http = HttpEngine(MemoryClient(self.echo), dialect or TokenIdsDialect(vllm_message), "m")
        self.well = False
        """Whether faults that a request asks for are left out."""
        self.facts = EngineFacts(
            kind="echo",
            model="m",
            twin="twin",
            resume=resume,
            routes=(Route.CHAT, Route.COMPLETIONS, Route.EMBEDDINGS),
            slots=8,
            continues_messages=True,
        )

    def generate(self, call: EngineCall) -> AsyncGenerator[Delta, None]:
        if self.well:
            body = {name: value for name, value in call.body.items() if name != "x_echo"}
            call = replace(call, body=body)
        return self._http.generate(call)

    async def embed(self, call: EngineCall) -> Json:
        assert call.route is Route.EMBEDDINGS
        return await self._http.embed(call)

    async def start(self) -> None: ...

    async def stop(self, grace_s: float) -> None: ...

    def kill(self) -> None: ...

    async def ended(self) -> str:
        await asyncio.Event().wait()
        return ""

    async def healthy(self) -> bool:
        return True

    def process_ids(self) -> frozenset[int]:
        return frozenset()
