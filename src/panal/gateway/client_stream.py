"""A client's HTTP connection as the sink of an answer: bytes go to the transport from any callback."""

from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from panal.gateway.http_protocol import PanalHttpProtocol

COMMENT = b": waiting\n"
"""One line and no blank one, so that no client dispatches an empty event for it (P03)."""

RESUMES_HEADER = "x-panal-resumes"
"""How often the answer went on elsewhere: a header of a whole answer, a trailer of a stream."""

STREAM_HEAD = (
    "content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
)
CHUNKED_HEAD = STREAM_HEAD + "transfer-encoding: chunked\r\n"


class ClientStream:
    """Implements dispatch.sink.Sink over one request of a PanalHttpProtocol."""

    __slots__ = ("_chunked", "_cycle", "_http", "_request_id", "head_lines", "resumes", "started", "trailers")

    def __init__(self, http: PanalHttpProtocol, cycle: RequestResponseCycle, request_id: str) -> None:
        self._http = http
        self._cycle = cycle
        self._chunked = cycle.scope["http_version"] == "1.1"
        self._request_id = request_id
        self.started = False
        self.resumes = 0
        self.trailers = False
        """Whether the client takes trailers after a chunked body (TE: trailers)."""
        self.head_lines: Callable[[], list[tuple[str, str]]] | None = None
        """What stands in the head beside the rest: asked for when the head is written."""

    @property
    def on_gone(self) -> Callable[[], None] | None:
        return self._http.on_gone

    @on_gone.setter
    def on_gone(self, callback: Callable[[], None] | None) -> None:
        self._http.on_gone = callback
        if callback is not None and self.gone:
            callback()

    @property
    def on_drained(self) -> Callable[[], None] | None:
        return self._http.on_drained

    @on_drained.setter
    def on_drained(self, callback: Callable[[], None] | None) -> None:
        self._http.on_drained = callback

    @property
    def gone(self) -> bool:
        return bool(self._cycle.disconnected or self._http.transport.is_closing())

    @property
    def full(self) -> bool:
        return bool(self._http.flow.write_paused)

    def write(self, data: bytes) -> None:
        if self.gone:
            return
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
        if not self.started:
            framed = self._begin() + framed
        self._http.transport.write(framed)

    def keep_alive(self) -> None:
        self.write(COMMENT)

    async def finish(self, data: bytes) -> None:
        """Send the last bytes and end the response in order."""
        if data and not self.started:
            self.write(data)
            data = b""
        if not self.started or self.gone:
            return
        if self._chunked:
            trailer = f"{RESUMES_HEADER}: {self.resumes}\r\n".encode() if self.trailers else b""
            end = b"0\r\n%b\r\n" % trailer
            data = b"%x\r\n%b\r\n%b" % (len(data), data, end) if data else end
        await self._end(data)

    async def whole(self, body: bytes) -> None:
        """Send a complete JSON answer and end the response in order; nothing was written before."""
        if self.gone:
            return
        self._note_head(chunked=False)
        lines = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        if self.resumes:
            lines += f"{RESUMES_HEADER}: {self.resumes}\r\n"
        head = self._head(lines)
        await self._end(head + body)

    async def _end(self, data: bytes) -> None:
        """Write in one piece what is left, and let uvicorn go on to the connection's next request.

        What follows is what its own send() does after the last bytes.
        """
        if data:
            self._http.transport.write(data)
        cycle, http = self._cycle, self._http
        if http.flow.write_paused:
            await http.flow.drain()
        if cycle.disconnected:
            return
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            http.transport.close()
        cycle.on_response()

    def _begin(self) -> bytes:
        self._note_head(chunked=self._chunked)
        return self._head(CHUNKED_HEAD if self._chunked else STREAM_HEAD)

    def _note_head(self, *, chunked: bool) -> None:
        """Tell uvicorn that the response's head is out, in the terms of its own send()."""
        self.started = True
        cycle = self._cycle
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        cycle.chunked_encoding = chunked
        cycle.expected_content_length = 0

    def _head(self, lines: str) -> bytes:
        last = "\r\n" if self._cycle.keep_alive else "connection: close\r\n\r\n"
        if self.head_lines is not None:
            lines += "".join(f"{name}: {value}\r\n" for name, value in self.head_lines())
        return f"HTTP/1.1 200 OK\r\n{lines}x-request-id: {self._request_id}\r\n{last}".encode()
