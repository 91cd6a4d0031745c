"""The owner's page, asked over raw sockets: who is answered, who is not, and what a stranger can send."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from panal.core.clock import SystemClock
from panal.node.desk import Desk
from panal.node.desk_page import CONNECTIONS_MAX, DeskPage

TOKEN = "t" * 43


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[DeskPage]:
    """No agent, no bus, no gateway: only the desk's files."""
    made = DeskPage(Desk(tmp_path, SystemClock()), TOKEN)
    await made.start()
    yield made
    await made.close()


async def raw(page: DeskPage, data: bytes, *, end: bool = False) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", page.port)
    writer.write(data)
    if end:
        writer.write_eof()
    async with asyncio.timeout(30):
        try:
            answer = await reader.read()
        except ConnectionError:  # closed with what was sent unread
            answer = b""
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return answer


def get(page: DeskPage, path: str = f"/?token={TOKEN}", *headers: str, host: str = "") -> bytes:
    host = host or f"127.0.0.1:{page.port}"
    return "\r\n".join([f"GET {path} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode()


def post(
    page: DeskPage, path: str, body: str, *headers: str, host: str = "", origin: str | None = ""
) -> bytes:
    host = host or f"127.0.0.1:{page.port}"
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", *headers]
    if origin is not None:
        lines.append(f"Origin: {origin or f'http://{host}'}")
    return "\r\n".join([*lines, "", body]).encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_the_owner_sees_and_pauses_and_resumes(page: DeskPage, tmp_path: Path) -> None:
    desk = Desk(tmp_path, SystemClock())
    desk.write_status("serving", "", "", 1, {"power": "mains", "<b>": "<script>"})
    answer = await raw(page, get(page))
    assert status(answer) == 200
    assert b"serving" in answer
    assert b"mains" in answer
    assert b"<script>" not in answer, "words of sensors are text"
    assert b"default-src 'none'" in answer
    assert status(await raw(page, post(page, "/pause", f"token={TOKEN}&for=1h"))) == 303
    until_s = desk.paused_until_utc_s()
    assert until_s is not None
    assert 3500 < until_s - SystemClock().utc_seconds() <= 3600
    assert b"Resume" in await raw(page, get(page, host=f"localhost:{page.port}"))
    assert status(await raw(page, post(page, "/resume", f"token={TOKEN}"))) == 303
    assert desk.paused_until_utc_s() is None
    assert status(await raw(page, post(page, "/pause", f"token={TOKEN}&for="))) == 303
    assert desk.paused_until_utc_s() == float("inf")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:PORT", "[::1]:PORT", "0.0.0.0:PORT"],
)
async def test_a_foreign_host_is_refused(page: DeskPage, tmp_path: Path, host: str) -> None:
    host = host.replace("PORT", str(page.port))
    assert status(await raw(page, get(page, host=host))) == 421
    assert status(await raw(page, post(page, "/pause", f"token={TOKEN}", host=host))) == 421
    assert Desk(tmp_path, SystemClock()).paused_until_utc_s() is None


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:PORT", "http://127.0.0.1", None]
)
async def test_a_foreign_or_missing_origin_may_not_press_buttons(
    page: DeskPage, tmp_path: Path, origin: str | None
) -> None:
    origin = origin.replace("PORT", str(page.port)) if origin else origin
    assert status(await raw(page, post(page, "/pause", f"token={TOKEN}", origin=origin))) == 403
    assert Desk(tmp_path, SystemClock()).paused_until_utc_s() is None
    if origin:
        assert status(await raw(page, get(page, f"/?token={TOKEN}", f"Origin: {origin}"))) == 403


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN + "t", "%74" * 42])
async def test_without_the_token_another_user_of_the_machine_sees_and_does_nothing(
    page: DeskPage, tmp_path: Path, token: str
) -> None:
    answer = await raw(page, get(page, f"/?token={token}"))
    assert status(answer) == 403
    assert TOKEN.encode() not in answer
    assert status(await raw(page, post(page, "/pause", f"token={token}"))) == 403
    assert status(await raw(page, post(page, f"/pause?token={TOKEN}", "for=1h"))) == 403
    assert Desk(tmp_path, SystemClock()).paused_until_utc_s() is None


BAD: list[tuple[bytes, int]] = [
    (b"GARBAGE\r\n\r\n", 400),
    (b"PUT / HTTP/1.1\r\n\r\n", 400),
    (b"GET http://127.0.0.1/ HTTP/1.1\r\nHost: HOST\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: HOST\r\nHost: HOST\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost : HOST\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nbroken\r\n\r\n", 400),
    (b"POST /pause HTTP/1.1\r\nHost: HOST\r\n\r\n", 411),
    (b"POST /pause HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\n", 411),
    (b"POST /pause HTTP/1.1\r\nHost: HOST\r\nContent-Length: 9999999999\r\n\r\n", 413),
    (b"POST /pause HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", 431),
    (b"GET /?a=1&b=1&c=1&d=1&e=1&f=1&g=1&h=1&i=1 HTTP/1.1\r\nHost: HOST\r\n\r\n", 400),
    (b"GET /etc/passwd?token=" + TOKEN.encode() + b" HTTP/1.1\r\nHost: HOST\r\n\r\n", 404),
]


@pytest.mark.parametrize(("data", "wanted"), BAD)
async def test_a_request_that_is_none_is_refused(page: DeskPage, data: bytes, wanted: int) -> None:
    answer = await raw(page, data.replace(b"HOST", f"127.0.0.1:{page.port}".encode()))
    assert status(answer) == wanted


async def test_half_requests_and_many_connections_end_and_cost_nobody_else_the_page(page: DeskPage) -> None:
    assert await raw(page, b"GET / HT", end=True) == b""
    slow = [await asyncio.open_connection("127.0.0.1", page.port) for _ in range(CONNECTIONS_MAX)]
    await asyncio.sleep(0.05)
    assert await raw(page, get(page)) == b"", "more than its connections are not served"
    for reader, writer in slow:
        async with asyncio.timeout(30):
            assert await reader.read() == b"", "a silent one is closed"
        writer.close()
        await writer.wait_closed()
    assert status(await raw(page, get(page))) == 200


async def test_it_listens_on_loopback_only(page: DeskPage) -> None:
    import psutil

    mine = [each for each in psutil.Process().net_connections("tcp") if each.laddr.port == page.port]
    listening = {each.laddr.ip for each in mine if each.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}
