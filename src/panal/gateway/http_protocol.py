"""uvicorn's HTTP parser with what it lacks: deadlines, size limits, a way straight to the socket.

uvicorn with httptools is the strictest of the Python servers tried, but waits for ever for a header
or a body (reference/security.md 4.2). One sweep a half second looks at all connections, so that no
request pays for a timer. Refused clients get a JSON answer and a moment to read it.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from panal.gateway.door import Door, address_of
from panal.protocol.openai.errors import error_body

CONNECTION = "panal.connection"
"""Extension of the ASGI scope: this protocol, the request's own cycle, its headers by name."""

SWEEP_EACH_S = 0.5
LINGER_S = 2.0
CLIENT_SEND_BUFFER_BYTES = 128 * 1024
"""A small kernel buffer towards clients, so that 'acknowledged' means 'read'."""

PIPELINED_MAX = 8
"""Requests that a client may send behind one that is still being answered."""

STALL_PROGRESS_BYTES = 16 * 1024
"""A client that takes less within the limit for stalled writing reads nothing to speak of."""

FRAMING_BYTES_MIN = 512 * 1024
FRAMING_FACTOR = 8
"""Chunks of one byte cost six; whoever sends more framing than that sends no body."""

ONCE = frozenset({b"host", b"authorization", b"content-type", b"transfer-encoding", b"content-encoding"})
"""Headers of which two would let two readers understand two different requests."""

OF_UPGRADES = frozenset({b"connection", b"upgrade", b"http2-settings"})


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Deadlines in seconds and sizes in bytes (reference/security.md 4.1)."""

    header_s_max: float = 5.0
    body_gap_s_max: float = 10.0
    body_s_max: float = 120.0
    keep_alive_s_max: float = 15.0
    header_bytes_max: int = 32 * 1024
    headers_max: int = 100
    body_bytes_max: int = 10 * 1024 * 1024
    write_stall_s_max: float = 30.0


class Refused(Exception):
    """A request that is answered before any application sees it."""


class PanalHttpProtocol(HttpToolsProtocol):
    """One client connection. ``on_gone`` and ``on_drained`` belong to the answer that is running.

    Its phase is ``head`` (headers are awaited), ``body``, ``answer`` (the request is complete), ``idle``,
    ``held`` (not let in yet), ``deaf`` (answers what it has and hears nothing more) or ``refused``.
    """

    limits: HttpLimits
    door: Door
    new_request_id: Callable[[], str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_gone: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self.address = ""
        self.stranger = True
        """Whether no request of this connection showed a valid key yet."""
        self._running: RequestResponseCycle
        self._phase = "head"
        self._since_s = 0.0
        self._body_since_s = 0.0
        self._raw_bytes = 0
        self._header_bytes = 0
        self._body_bytes = 0
        self._refusal: tuple[int, str, str] | None = None
        self._stalled_since_s: float | None = None
        self._stalled_bytes = 0
        self._closing_since_s: float | None = None

    # --- connection -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CLIENT_SEND_BUFFER_BYTES)
        self.address = address_of(self.client)
        self._enter("head")
        self.door.enter(self, self._since_s)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.door.leave(self)
        gone, self.on_gone, self.on_drained = self.on_gone, None, None
        if gone is not None:
            gone()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_since_s = self.loop.time()
        self._stalled_bytes = self.transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled_since_s = None
        if self.on_drained is not None:
            self.on_drained()

    def data_received(self, data: bytes) -> None:
        phase = self._phase
        if phase in ("refused", "deaf"):
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._go_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._answer_refusal(*(self._refusal or (400, "invalid_request", "This is not valid HTTP.")))
        else:
            if self._phase == phase:
                self._count_raw(len(data))

    def hang_up(self) -> None:
        """Nobody waits for an answer of this connection any more."""
        if self._phase != "refused":
            self.transport.close()

    def authenticated(self) -> None:
        """A request of this connection showed a valid key."""
        if self.stranger:
            self.stranger = False
            self.door.known(self)

    # --- parser -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = self._body_bytes = 0
        if self._phase != "head":
            self._enter("head")
        self._raw_bytes = 1

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == "head":  # what follows a chunked body is no header of the request
            super().on_header(name, value)
        self._count_header(len(name) + len(value))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        names = dict(self.headers)
        self._check_headers(names)
        if len(self.pipeline) >= PIPELINED_MAX:
            self._refuse(400, "invalid_request", "Too many requests were sent before the first was answered.")
        super().on_headers_complete()
        self.scope["extensions"] = {CONNECTION: (self, self.cycle, names)}  # type: ignore[dict-item]
        self._enter("body")
        self._body_since_s = self._since_s
        if self.pipeline:
            self.flow.resume_reading()  # a client that leaves is noticed only while it is read

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self.limits.body_bytes_max:
            self._refuse_body()
        self._since_s = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._enter("idle" if self.cycle.response_complete else "answer")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Go on with the connection's next request; ours, because uvicorn's starts a timer for each."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        if self._phase == "answer" and self.cycle.response_complete:
            self._enter("idle")
        elif self._phase in ("head", "body"):
            self._since_s = self._body_since_s = self.loop.time()  # the next request's time begins now

    # --- limits -----------------------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """Close the connection if it has been in a phase for too long."""
        limits = self.limits
        age_s = now_s - self._since_s
        if self._stalled(now_s):
            self.transport.abort()
        elif self._phase == "refused":
            if age_s > LINGER_S:
                self.transport.close()
        elif self._phase == "idle":
            if age_s > limits.keep_alive_s_max:
                self.transport.close()
        elif self._phase == "held":
            if age_s > limits.header_s_max:
                self.transport.close()
        elif self._phase == "head":
            if age_s > limits.header_s_max and not self._busy:
                self._end_head()
        elif (
            self._phase == "body"
            and (age_s > limits.body_gap_s_max or now_s - self._body_since_s > limits.body_s_max)
            and not self._queued
        ):
            self._answer_refusal(408, "timeout", "The request's body did not arrive in time.")

    def silent_s(self, now_s: float) -> float | None:
        """See door.Visitor. Half a header counts half, so that those who said nothing at all go first."""
        if self._phase not in ("idle", "head") or self._busy or self.transport.is_closing():
            return None
        age_s = now_s - self._since_s
        return age_s / 2 if self._raw_bytes and self._phase == "head" else age_s

    def close_silent(self) -> None:
        self.transport.close()

    def hold(self) -> None:
        self._enter("held")
        self.flow.pause_reading()

    def admit(self) -> None:
        self._enter("head")
        self.flow.resume_reading()

    def turn_away(self) -> None:
        self._answer_refusal(503, "overloaded", "There are too many connections at the moment.")
        self.transport.close()

    @property
    def _busy(self) -> bool:
        """Whether an answer is due on this connection."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _queued(self) -> bool:
        """Whether the newest request waits for the answer to an earlier one."""
        return bool(self.pipeline) and self.pipeline[0][0] is self.cycle

    def _stalled(self, now_s: float) -> bool:
        """Whether the client takes nothing of what was written, or does not let the connection end."""
        limit_s = self.limits.write_stall_s_max
        if self.transport.is_closing():
            if self._closing_since_s is None:
                self._closing_since_s = now_s
            return now_s - self._closing_since_s > limit_s
        if self._stalled_since_s is None:
            return False
        left_bytes = self.transport.get_write_buffer_size()
        if left_bytes <= self._stalled_bytes - STALL_PROGRESS_BYTES:
            self._stalled_since_s = now_s
            self._stalled_bytes = left_bytes
        else:
            self._stalled_bytes = max(left_bytes, self._stalled_bytes)
        return now_s - self._stalled_since_s > limit_s

    def _end_head(self) -> None:
        if self._raw_bytes:
            self._answer_refusal(408, "timeout", "The request's headers did not arrive in time.")
        else:
            self.transport.close()

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._since_s = self.loop.time()
        self._raw_bytes = 0

    def _check_headers(self, names: dict[bytes, bytes]) -> None:
        if len(names) != len(self.headers):
            seen = [name for name, _value in self.headers if name in ONCE]
            if len(seen) != len(set(seen)):
                self._refuse(400, "invalid_request", "A header that may come once came twice.")
        if not names.get(b"host") and self.parser.get_http_version() != "1.0":
            self._refuse(400, "invalid_request", "The Host header is missing.")
        coding = names.get(b"transfer-encoding")
        if coding is not None and coding.lower() != b"chunked":
            status = 415 if coding.lower().endswith(b"chunked") and b"," in coding else 400
            self._refuse(status, "invalid_request", "Of transfer codings only 'chunked' is accepted.")
        if names.get(b"content-encoding", b"identity").lower() != b"identity":
            self._refuse(415, "invalid_request", "Compressed request bodies are not accepted.")
        length = names.get(b"content-length")
        if length is not None and int(length) > self.limits.body_bytes_max:
            self._refuse_body()

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.limits.header_bytes_max or len(self.headers) > self.limits.headers_max:
            self._refuse_headers()

    def _count_raw(self, size: int) -> None:
        """Bytes that the parser took without telling of them: a header without end, framing without body."""
        self._raw_bytes += size
        if self._phase in ("head", "idle") and self._raw_bytes > self.limits.header_bytes_max:
            self._answer_refusal(431, "request_too_large", "The request's headers are too large.")
        elif (
            self._phase == "body" and self._raw_bytes > FRAMING_BYTES_MIN + FRAMING_FACTOR * self._body_bytes
        ):
            self._answer_refusal(400, "invalid_request", "The request's body is all framing.")

    def _refuse_headers(self) -> None:
        self._refuse(431, "request_too_large", "The request's headers are too large.")

    def _refuse_body(self) -> None:
        limit = self.limits.body_bytes_max
        self._refuse(413, "request_too_large", f"The request body is larger than {limit} bytes.")

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._refusal = (status, code, message)
        raise Refused(message)

    def _answer_refusal(self, status: int, code: str, message: str) -> None:
        """Answer instead of the application, where no answer is on its way; hear nothing more."""
        own = self.cycle if self._phase == "body" else None
        if own is not None and self._queued:
            self.pipeline.popleft()
            self._stop_hearing(self.pipeline[0][0] if self.pipeline else self._running)
        elif own is None and self._busy:
            self._stop_hearing(self.cycle)
        else:
            self._refuse_now(own, status, code, message)

    def _stop_hearing(self, last: RequestResponseCycle) -> None:
        """Answer what was understood before, then close."""
        self._enter("deaf")
        self.cycle = last
        last.keep_alive = False
        self.flow.resume_reading()

    def _refuse_now(self, own: RequestResponseCycle | None, status: int, code: str, message: str) -> None:
        began = own is not None and own.response_started
        if own is not None and not own.response_complete:
            own.disconnected = True
            own.message_event.set()
        self._enter("refused")
        self.flow.resume_reading()  # what still comes is thrown away, so that the answer can be read
        if self.transport.is_closing():
            return
        if not began:
            self.transport.write(self._refusal_bytes(status, code, message))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _refusal_bytes(self, status: int, code: str, message: str) -> bytes:
        request_id = self.new_request_id()
        kind = "server_error" if status >= 500 else "invalid_request_error"
        body = msgspec.json.encode(error_body(message, kind=kind, code=code, request_id=request_id))
        more = f"x-request-id: {request_id}\r\n" if request_id else ""
        more += "retry-after: 1\r\n" if status == 503 else ""
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n{more}connection: close\r\n\r\n"
        )
        return head.encode() + body

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """The client offers another protocol, as Java's does with each first request: answer in this one.

        The parser has stopped behind the head, so a new one gets the head without the offer, and the rest.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._answer_refusal(400, "invalid_request", "This is no proxy.")
            return
        closing = any(name == b"connection" and b"close" in value.lower() for name, value in self.headers)
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] not in OF_UPGRADES]
        if closing:
            lines.append(b"connection: close")
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)
