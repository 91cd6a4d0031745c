"""A wire between each node and the bus that can be cut, or stand and carry nothing."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")

PIECE_BYTES = 64 * 1024


class Wire(StrEnum):
    """How a wire is."""

    WHOLE = "whole"
    CUT = "cut"
    """Connections end and none comes about."""
    SILENT = "silent"
    """Connections stand, and nothing moves on them."""


class _Line:
    """One node's wire: a port that leads to the bus."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._transports: set[asyncio.WriteTransport] = set()
        self.state = Wire.WHOLE
        self.port = 0
        self.server: asyncio.Server | None = None

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    def become(self, state: Wire) -> None:
        self.state = state
        if state is Wire.WHOLE:
            self._open.set()
        else:
            self._open.clear()
        if state is Wire.CUT:
            self.end_all()

    def end_all(self) -> None:
        for transport in list(self._transports):
            transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.state is Wire.CUT:
            writer.transport.abort()
            return
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer.transport, inner_writer.transport)
        self._transports.update(ends)
        pumps = [
            asyncio.create_task(self._pump(reader, inner_writer)),
            asyncio.create_task(self._pump(inner_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for transport in ends:
                transport.abort()
            self._transports.difference_update(ends)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                await self._open.wait()
                writer.write(data)
                await writer.drain()


class Wires:
    """All wires, in a thread of their own."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._lines: list[_Line] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self) -> int:
        """A new wire; gives the port that a node has to use."""
        line = _Line(self._target)
        asyncio.run_coroutine_threadsafe(line.start(), self._loop).result(10.0)
        self._lines.append(line)
        return line.port

    def set(self, number: int, state: Wire) -> None:
        self._call(lambda: self._lines[number].become(state))

    def stop(self) -> None:
        async def end() -> None:
            for line in self._lines:
                if line.server is not None:
                    line.server.close()
                line.end_all()
            mine = asyncio.current_task()
            others = [task for task in asyncio.all_tasks() if task is not mine]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    def _call(self, what: Callable[[], T]) -> T:
        async def run() -> T:
            return what()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10.0)
