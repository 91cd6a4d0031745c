"""A TCP port that leads to a server once it is opened: nobody listens there before."""

import asyncio
import contextlib
import threading
from urllib.parse import parse_qs, urlsplit

BLOCK_BYTES = 64 * 1024


def through(url: str, port: int) -> str:
    """The PostgreSQL URL, by way of a port of this machine."""
    parts = urlsplit(url)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return f"postgresql://{user}127.0.0.1:{port}{parts.path}"


class Gate:
    """Runs in a thread of its own; leads to the server of a PostgreSQL URL, by TCP or a socket's file."""

    def __init__(self, url: str, port: int) -> None:
        parts = urlsplit(url)
        given = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self._host = given.get("host", parts.hostname or "127.0.0.1")
        self._port = int(given.get("port", parts.port or 5432))
        self._at = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._open = threading.Event()

    def open(self) -> None:
        self._thread.start()
        assert self._open.wait(10.0)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", self._at))
        self._open.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._host.startswith("/"):
            inner = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        else:
            inner = await asyncio.open_connection(self._host, self._port)
        await asyncio.gather(_copy(reader, inner[1]), _copy(inner[0], writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while block := await reader.read(BLOCK_BYTES):
            writer.write(block)
            await writer.drain()
    writer.close()
