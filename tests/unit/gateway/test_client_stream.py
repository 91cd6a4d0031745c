"""An answer on a real connection: in one piece or in chunks, and the connection afterwards."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from panal.gateway.client_stream import ClientStream
from panal.gateway.http_protocol import CONNECTION, SWEEP_EACH_S, HttpLimits
from panal.gateway.listener import Listener
from panal.gateway.sockets import bound

TIME_S_MAX = 10


async def answering(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answers /whole with one JSON object, everything else with two events, /slow after a while."""
    while (await receive())["more_body"]:
        pass
    http, cycle, _headers = scope["extensions"][CONNECTION]
    client = ClientStream(http, cycle, request_id="req_1")
    client.trailers = scope["path"] == "/trailers"
    client.resumes = 2 if scope["path"].startswith(("/trailers", "/resumed")) else 0
    if scope["path"].startswith("/limited"):
        client.head_lines = lambda: [("x-ratelimit-remaining-requests", "7")]
    if scope["path"] == "/slow":
        await asyncio.sleep(3 * SWEEP_EACH_S)
    if scope["path"].endswith("/whole"):
        await client.whole(b'{"a":1}')
    else:
        client.write(b"data: 1\n\n")
        await client.finish(b"data: 2\n\n")
    assert client.started


@pytest.fixture
async def port() -> AsyncIterator[int]:
    listener = Listener(answering, bound("127.0.0.1", 0), HttpLimits())
    await listener.start()
    yield listener.port
    await listener.stop(1.0)


@pytest.fixture
async def impatient_port() -> AsyncIterator[int]:
    listener = Listener(answering, bound("127.0.0.1", 0), HttpLimits(keep_alive_s_max=0.1))
    await listener.start()
    yield listener.port
    await listener.stop(1.0)


async def asked(port: int, *requests: bytes) -> bytes:
    """Everything that comes back until the server hangs up; the last request asks for that."""
    async with asyncio.timeout(TIME_S_MAX):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(requests))
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    return answer


async def test_a_whole_answer_has_its_length_and_keeps_the_connection(port: int) -> None:
    first = b"POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    last = b"POST /whole HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    answer = await asked(port, first, last)
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\nx-request-id: req_1\r\n"
    )
    assert answer == head + b'\r\n{"a":1}' + head + b'connection: close\r\n\r\n{"a":1}'


async def test_a_stream_is_chunked_and_ends_in_order(port: int) -> None:
    answer = await asked(port, b"POST /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert b"connection: close" in head
    assert body == b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"


async def test_a_stream_for_an_old_client_ends_with_the_connection(port: int) -> None:
    answer = await asked(port, b"POST /stream HTTP/1.0\r\nHost: a\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert body == b"data: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize("path", ["/limited", "/limited/whole"])
async def test_lines_of_the_head_stand_there_once_and_only_where_they_are_asked_for(
    port: int, path: str
) -> None:
    request = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}".encode()
    )
    head = (await asked(port, request)).split(b"\r\n\r\n")[0]
    assert head.count(b"x-ratelimit-remaining-requests: 7\r\n") == 1
    plain = (await asked(port, request.replace(b"/limited", b"/open", 1))).split(b"\r\n\r\n")[0]
    assert b"x-ratelimit" not in plain


async def test_a_connection_that_stays_idle_is_closed(impatient_port: int) -> None:
    request = b"POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    answer = await asked(impatient_port, request, request)
    assert answer.count(b"200 OK") == 2


async def test_an_answer_may_take_longer_than_a_connection_may_idle(impatient_port: int) -> None:
    first = b"POST /whole HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    slow = b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
    answer = await asked(impatient_port, first, slow)
    assert answer.endswith(b"data: 2\n\n\r\n0\r\n\r\n")


async def test_resumes_are_a_header_of_a_whole_answer_and_a_trailer_for_those_who_take_it(port: int) -> None:
    request = b"POST %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    whole = await asked(port, request % b"/resumed/whole")
    assert b"\r\nx-panal-resumes: 2\r\n" in whole.partition(b"\r\n\r\n")[0] + b"\r\n"
    assert b"x-panal-resumes" not in await asked(port, request % b"/whole")
    assert (await asked(port, request % b"/trailers")).endswith(b"\r\n0\r\nx-panal-resumes: 2\r\n\r\n")
    assert (await asked(port, request % b"/resumed")).endswith(b"\r\n0\r\n\r\n")
