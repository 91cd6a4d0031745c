"""The HTTP client for engines against servers that do everything wrong."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from panal.core.errors import EngineFailed
from panal.node.engines.http_stream import EngineAddress, EngineClient

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def client_of(serve: Serve) -> AsyncIterator[EngineClient]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    client = EngineClient(EngineAddress("127.0.0.1", server.sockets[0].getsockname()[1], api_key="k"))
    async with asyncio.timeout(20):
        yield client
    client.close()
    server.close()
    await asyncio.sleep(0)


async def request_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


def whole(body: bytes, extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), extra, body)


async def test_a_body_is_the_same_however_the_bytes_come() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        for byte in CHUNKED + b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()

    async with client_of(serve) as client, await client.post("/x", b"{}") as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
        assert await response.whole(100) == b"abcdefg"


async def test_the_key_and_the_body_are_sent() -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await request_of(reader))
        writer.write(whole(b"{}"))

    async with client_of(serve) as client, await client.post("/v1/x", b'{"a":1}') as response:
        await response.whole(100)
    assert seen[0].startswith(b"POST /v1/x HTTP/1.1\r\n") and seen[0].endswith(b'{"a":1}')
    assert b"Authorization: Bearer k\r\n" in seen[0]


async def test_a_connection_is_used_again_and_replaced_when_it_went_stale() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for _ in range(2):
            await request_of(reader)
            writer.write(whole(b"{}"))
        await request_of(reader)  # the third request on one connection gets no answer

    async with client_of(serve) as client:
        for _ in range(5):
            async with await client.post("/x", b"{}") as response:
                assert await response.whole(100) == b"{}"
    assert connections == 3


async def test_a_fresh_connection_without_an_answer_is_a_failure() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)

    async with client_of(serve) as client:
        with pytest.raises(EngineFailed):
            await client.post("/x", b"{}")


@pytest.mark.parametrize(
    "answer",
    [
        b"SMTP ready\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        CHUNKED + b"3\r\nabc\r\n",
        CHUNKED + b"zz\r\nabc\r\n",
    ],
)
async def test_answers_that_are_broken_or_cut_are_failures(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(answer)
        await writer.drain()

    async with client_of(serve) as client:
        with pytest.raises(EngineFailed):
            async with await client.post("/x", b"{}") as response:
                await response.whole(1_000_000)


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nto the end")
        await writer.drain()

    async with client_of(serve) as client, await client.post("/x", b"{}") as response:
        assert await response.whole(100) == b"to the end"


async def test_an_engine_feels_a_reader_who_does_not_read() -> None:
    written = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.transport.set_write_buffer_limits(high=16 * 1024)
        await request_of(reader)
        writer.write(CHUNKED)
        while written < 200_000_000:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()
            written += 65536

    async with client_of(serve) as client, await client.post("/x", b"{}") as response:
        last = -1
        while written != last:
            last = written
            await asyncio.sleep(0.1)
        assert written < 20_000_000
        read = 0
        while read < written:
            read += len(await response.read())


async def test_leaving_an_answer_early_drops_the_connection() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(CHUNKED + b"3\r\nabc\r\n")
        try:
            await reader.read()
        finally:
            gone.set()

    async with client_of(serve) as client:
        async with await client.post("/x", b"{}") as response:
            assert await response.read() == b"abc"
        await gone.wait()


async def test_nobody_listening_is_a_failure() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(EngineFailed, match="does not take connections"):
        await EngineClient(EngineAddress("127.0.0.1", port)).post("/x", b"{}")
