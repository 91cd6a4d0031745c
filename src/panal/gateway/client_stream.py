"""A client's HTTP connection as the sink of an answer: bytes go to the transport from any callback."""

from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from panal.gateway.http_protocol import PanalHttpProtocol

COMMENT = b": waiting\n"
"""One line and no blank one, so that no client dispatches an empty event for it (P03)."""


class ClientStream:
    """Implements dispatch.sink.Sink over one request of a PanalHttpProtocol."""

    __slots__ = ("_chunked", "_cycle", "_head", "_http", "started")

    def __init__(self, http: PanalHttpProtocol, cycle: RequestResponseCycle, request_id: str) -> None:
        self._http = http
        self._cycle = cycle
        self._chunked = cycle.scope["http_version"] == "1.1"
        self._head = _head(request_id, chunked=self._chunked, keep_alive=cycle.keep_alive)
        self.started = False

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
            self._begin()
            framed = self._head + framed
        self._http.transport.write(framed)

    def keep_alive(self) -> None:
        self.write(COMMENT)

    async def finish(self, data: bytes) -> None:
        """Send the last bytes and end the response in order."""
        if data:
            self.write(data)
        if self.started and not self.gone:
            await self._cycle.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _begin(self) -> None:
        """Tell uvicorn that the response's head is out, in the terms of its own send()."""
        self.started = True
        self._cycle.response_started = True
        self._cycle.waiting_for_100_continue = False
        self._cycle.chunked_encoding = self._chunked
        self._cycle.expected_content_length = 0


def _head(request_id: str, *, chunked: bool, keep_alive: bool) -> bytes:
    lines = [
        "HTTP/1.1 200 OK",
        "content-type: text/event-stream; charset=utf-8",
        "cache-control: no-cache",
        "x-accel-buffering: no",
        f"x-request-id: {request_id}",
    ]
    if chunked:
        lines.append("transfer-encoding: chunked")
    if not keep_alive:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
