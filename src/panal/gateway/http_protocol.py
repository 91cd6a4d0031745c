"""uvicorn's HTTP parser with what it lacks: deadlines, size limits, a way straight to the socket.

uvicorn with httptools is the strictest of the Python servers tried, but waits for ever for a header
or a body (reference/security.md 4.2). One sweep a half second looks at all connections, so that no
request pays for a timer. Refused clients get a JSON answer and a moment to read it.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from panal.protocol.openai.errors import error_body

CONNECTION = "panal.connection"
"""Extension of the ASGI scope: this protocol, the request's own cycle, its headers by name."""

SWEEP_EACH_S = 0.5
LINGER_S = 2.0
CLIENT_SEND_BUFFER_BYTES = 128 * 1024
"""A small kernel buffer towards clients, so that 'acknowledged' means 'read'."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Deadlines in seconds and sizes in bytes (reference/security.md 4.1)."""

    header_s_max: float = 5.0
    body_gap_s_max: float = 10.0
    keep_alive_s_max: float = 15.0
    header_bytes_max: int = 32 * 1024
    headers_max: int = 100
    body_bytes_max: int = 10 * 1024 * 1024
    write_stall_s_max: float = 30.0


class Refused(Exception):
    """A request that is answered before any application sees it."""


class PanalHttpProtocol(HttpToolsProtocol):
    """One client connection. ``on_gone`` and ``on_drained`` belong to the answer that is running."""

    limits = HttpLimits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_gone: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self._phase = "head"
        self._since_s = 0.0
        self._header_bytes = 0
        self._body_bytes = 0
        self._refusal: tuple[int, str, str] | None = None
        self._stalled_since_s: float | None = None

    # --- connection -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CLIENT_SEND_BUFFER_BYTES)
        self._enter("head")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        gone, self.on_gone, self.on_drained = self.on_gone, None, None
        if gone is not None:
            gone()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_since_s = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled_since_s = None
        if self.on_drained is not None:
            self.on_drained()

    def data_received(self, data: bytes) -> None:
        if self._refusal is None:
            super().data_received(data)

    # --- parser -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = self._body_bytes = 0
        if self._phase != "head":
            self._enter("head")

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count_header(len(name) + len(value))

    def on_headers_complete(self) -> None:
        names = dict(self.headers)
        if b"host" not in names:
            self._refuse(400, "invalid_request", "The Host header is missing.")
        if b"content-encoding" in names:
            self._refuse(415, "invalid_request", "Compressed request bodies are not accepted.")
        length = names.get(b"content-length")
        if length is not None and int(length) > self.limits.body_bytes_max:
            self._refuse_body()
        super().on_headers_complete()
        self.scope["extensions"] = {CONNECTION: (self, self.cycle, names)}  # type: ignore[dict-item]
        self._enter("body")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self.limits.body_bytes_max:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._refuse_body()
        self._since_s = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._phase = "idle" if self.cycle.response_complete else "answer"

    def on_response_complete(self) -> None:
        """As the parent does it, but without a timer for each answer: ``sweep`` ends what stays idle."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._enter("idle")
        self.flow.resume_reading()
        if self.pipeline:
            self._phase = "answer"
            self._start_asgi_task(*self.pipeline.pop())

    # --- limits -----------------------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """Close the connection if it has been in a phase for too long."""
        age_s = now_s - self._since_s
        stalled_s = 0.0 if self._stalled_since_s is None else now_s - self._stalled_since_s
        if stalled_s > self.limits.write_stall_s_max:
            self.transport.abort()
        elif self._phase == "refused":
            if age_s > LINGER_S:
                self.transport.close()
        elif self._phase == "idle":
            if age_s > self.limits.keep_alive_s_max and self.cycle.response_complete:
                self.transport.close()
        elif self._phase == "head" and age_s > self.limits.header_s_max:
            if self._header_bytes:
                self._answer_refusal(408, "timeout", "The request's headers did not arrive in time.")
            else:
                self.transport.close()
        elif self._phase == "body" and age_s > self.limits.body_gap_s_max and not self.cycle.response_started:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._answer_refusal(408, "timeout", "The request's body did not arrive in time.")

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser refused, in OpenAI's shape."""
        status, code, text = self._refusal or (400, "invalid_request", msg)
        self._refusal = None
        self._answer_refusal(status, code, text)

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._since_s = self.loop.time()

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.limits.header_bytes_max or len(self.headers) > self.limits.headers_max:
            self._refuse(431, "request_too_large", "The request's headers are too large.")

    def _refuse_body(self) -> None:
        limit = self.limits.body_bytes_max
        self._refuse(413, "request_too_large", f"The request body is larger than {limit} bytes.")

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._refusal = (status, code, message)
        raise Refused(message)

    def _answer_refusal(self, status: int, code: str, message: str) -> None:
        body = msgspec.json.encode(error_body(message, kind="invalid_request_error", code=code))
        head = (
            f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._refusal = (status, code, message)
        self._enter("refused")
        if not self.transport.is_closing():
            self.transport.write(head.encode() + body)
