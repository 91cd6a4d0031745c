"""A TCP relay between a client and a server that drops connections in which nothing moves, as proxies do."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Relay:
    """Runs in a thread of its own. ``dropped``: connections that were idle for too long.

    ``source`` is the address that the server sees, of connections made from now on.
    """

    def __init__(self, port: int, idle_s_max: float) -> None:
        self._target = port
        self._idle_s_max = idle_s_max
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0
        self.dropped = 0
        self.source = "127.0.0.1"
        self.connections = 0
        self._open: set[asyncio.StreamWriter] = set()

    def move(self, source: str) -> None:
        """The client has another address now: its connections break, the next ones come from there."""

        def moved() -> None:
            self.source = source
            for writer in self._open:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(moved)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(10.0)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
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
        inner_reader, inner_writer = await asyncio.open_connection(
            "127.0.0.1", self._target, local_addr=(self.source, 0)
        )
        self._open |= {writer, inner_writer}
        self.connections += 1
        moved = asyncio.Event()
        pumps = [
            asyncio.create_task(_pump(reader, inner_writer, moved)),
            asyncio.create_task(_pump(inner_reader, writer, moved)),
        ]
        watch = asyncio.create_task(self._watch(moved))
        try:
            await asyncio.wait([*pumps, watch], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*pumps, watch):
                task.cancel()
            await asyncio.gather(*pumps, watch, return_exceptions=True)
            self._open -= {writer, inner_writer}
            for each in (writer, inner_writer):
                each.transport.abort()

    async def _watch(self, moved: asyncio.Event) -> None:
        while True:
            moved.clear()
            try:
                async with asyncio.timeout(self._idle_s_max):
                    await moved.wait()
            except TimeoutError:
                self.dropped += 1
                return


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: asyncio.Event) -> None:
    while data := await reader.read(65536):
        moved.set()
        writer.write(data)
        await writer.drain()


@contextlib.contextmanager
def relay(port: int, idle_s_max: float) -> Iterator[Relay]:
    """A relay to a port of this machine."""
    made = Relay(port, idle_s_max)
    made.start()
    try:
        yield made
    finally:
        made.stop()
