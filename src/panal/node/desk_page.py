"""A small page for the owner on the loopback interface: what the node does, and a button to pause it.

Everything it needs are the desk's files, so it works with the bus, the gateway and the agent itself away.
Whoever asks must know the token of this start (other users of the machine reach loopback too), and must
name this very address as host and origin (a foreign site that resolves to loopback names its own).
One request a connection, with small limits on all that a stranger can send.
"""

import asyncio
import contextlib
import hmac
import html
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from panal.core.errors import PanalError
from panal.node.desk import Desk, DeskStatus

HEAD_BYTES_MAX = 8 * 1024
BODY_BYTES_MAX = 1024
REQUEST_S_MAX = 5.0
CONNECTIONS_MAX = 8
PAUSES_S = {"1h": 3600.0, "today": 8 * 3600.0, "": None}
HEADERS = (
    "Cache-Control: no-store",
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Resource-Policy: same-origin",
    "Referrer-Policy: same-origin",  # stricter ones make browsers hide the origin of our own form
    "X-Content-Type-Options: nosniff",
    "Connection: close",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as far as it matters here; header names in lower case."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes = b""


class Refused(Exception):
    """A request that is answered with nothing but a status."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


class DeskPage:
    """``token`` is secret and new at each start; whoever starts the page tells its owner the URL."""

    def __init__(self, desk: Desk, token: str) -> None:
        self._desk = desk
        self._token = token
        self._server: asyncio.Server | None = None
        self._connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={self._token}"

    async def start(self, port: int = 0) -> None:
        """Listen on 127.0.0.1 only; port 0 is any. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=HEAD_BYTES_MAX)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_S_MAX):
                    writer.write(await self._answer(reader))
                    await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever sends half a request gets no answer
        finally:
            self._connections -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            asked = await _read(reader)
            self._check(asked)
            return self._done(asked)
        except Refused as refused:
            return _response(refused.status, refused.status[4:])

    def _check(self, asked: Asked) -> None:
        hosts = {f"127.0.0.1:{self.port}", f"localhost:{self.port}"}
        host, origin = asked.headers.get("host", ""), asked.headers.get("origin")
        if host not in hosts:
            raise Refused("421 Misdirected Request")
        if origin is not None and origin != f"http://{host}":
            raise Refused("403 Forbidden")
        if asked.method == "POST" and origin is None:
            raise Refused("403 Forbidden")
        given = asked.query.get("token", [""])[0]
        if asked.method == "POST":
            given = parse_qs(asked.body.decode("ascii", "replace")).get("token", [""])[0]
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise Refused("403 Forbidden")

    def _done(self, asked: Asked) -> bytes:
        if asked.method == "GET" and asked.path == "/":
            return _response("200 OK", self._page(self._desk.status()))
        if asked.method != "POST" or asked.path not in ("/pause", "/resume"):
            raise Refused("404 Not Found")
        try:
            if asked.path == "/resume":
                self._desk.resume()
            else:
                lasting = parse_qs(asked.body.decode("ascii", "replace")).get("for", [""])[0]
                if lasting not in PAUSES_S:
                    raise Refused("400 Bad Request")
                self._desk.pause(PAUSES_S[lasting])
        except (PanalError, OSError):
            raise Refused("500 Internal Server Error") from None
        return _response("303 See Other", "", f"Location: /?token={self._token}")

    def _page(self, found: DeskStatus) -> str:
        paused = self._desk.paused_until_utc_s() is not None
        status = found.status if found.fresh else None
        words = "The agent does not run."
        lines = ""
        if status is not None:
            words = f"{status.state}{' - ' + status.reason if status.reason else ''}"
            told = {**({"problem": status.problem} if status.problem else {}), **status.sensors}
            lines = "".join(
                f"<tr><td>{html.escape(name)}<td>{html.escape(word)}" for name, word in told.items()
            )
        buttons = self._button("/resume", "", "Resume")
        if not paused:
            buttons = (
                self._button("/pause", "1h", "Pause for an hour")
                + self._button("/pause", "today", "Pause for 8 hours")
                + self._button("/pause", "", "Pause until I resume")
            )
        return (
            '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="5"><title>panal</title>'
            "<style>body{font:16px sans-serif;margin:2em}td{padding:.2em 1em .2em 0}</style>"
            f"<h1>This desk</h1><p>{html.escape(words)}{' (paused)' if paused else ''}</p>"
            f"{buttons}<table>{lines}</table>"
        )

    def _button(self, path: str, lasting: str, label: str) -> str:
        return (
            f'<form method="post" action="{path}"><input type="hidden" name="token" value="{self._token}">'
            f'<input type="hidden" name="for" value="{lasting}"><button>{label}</button></form>'
        )


async def _read(reader: asyncio.StreamReader) -> Asked:
    """Raises Refused for what is no request that we take."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Refused("431 Request Header Fields Too Large") from None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or words[0] not in ("GET", "POST"):
        raise Refused("400 Bad Request")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or name.lower() in headers:
            raise Refused("400 Bad Request")
        headers[name.lower()] = value.strip()
    try:
        target = urlsplit(words[1])
        query = parse_qs(target.query, max_num_fields=8)
    except ValueError:
        raise Refused("400 Bad Request") from None
    if target.scheme or target.netloc or "transfer-encoding" in headers:
        raise Refused("400 Bad Request")
    asked = Asked(words[0], target.path, query, headers)
    if asked.method == "GET":
        return asked
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdecimal()):
        raise Refused("411 Length Required")
    if len(length) > 6 or int(length) > BODY_BYTES_MAX:
        raise Refused("413 Content Too Large")
    return Asked(asked.method, asked.path, query, headers, await reader.readexactly(int(length)))


def _response(status: str, body: str, *more: str) -> bytes:
    kind = "text/html" if body.startswith("<") else "text/plain"
    data = body.encode()
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}; charset=utf-8", f"Content-Length: {len(data)}"]
    return "\r\n".join([*head, *HEADERS, *more, "", ""]).encode() + data
