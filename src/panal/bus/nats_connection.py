"""One connection to one NATS server, from the handshake to its end. It never comes back to life."""

import asyncio
import base64
import contextlib
import json
import logging
from collections import deque
from typing import Any, Protocol, cast

from panal.bus.connector import Server, Servers, open_transport
from panal.bus.credentials import Login
from panal.bus.nats_parser import Handler, Parser
from panal.core.errors import BusError, ProtocolError

PENDING_BYTES_MAX = 8 * 1024 * 1024
PING_INTERVAL_S = 1.0
SILENT_AFTER_S = 2.0
"""A server that says nothing for so long, with a question open, is taken for away; the connection stays."""

DEAD_AFTER_S = 10.0
"""After so long it is given up, and another connection is tried."""

OVERSLEPT_S = 0.5
"""A look that comes so much too late was held up by ourselves: it judges nobody."""
_PAUSE_AT_BYTES = 256 * 1024
_TOGETHER_BYTES_MAX = 64 * 1024

_REFUSALS = ("authorization violation", "authentication expired", "authentication revoked")

_log = logging.getLogger(__name__)


class Refused(BusError):
    """The server does not accept the credential."""

    code = "bus_refused"


class ConnectionObserver(Protocol):
    """Who hears about a connection. Plain calls from the event loop."""

    def on_ended(self, connection: "NatsConnection") -> None: ...

    def on_lame_duck(self, connection: "NatsConnection") -> None: ...

    def on_violation(self, text: str) -> None: ...

    def on_silent(self, connection: "NatsConnection") -> None:
        """The server does not answer at the moment, or answers again: see ``connection.silent``."""
        ...


class NatsConnection(asyncio.Protocol):
    """Speaks NATS over a transport. Make it inside a running loop; ``open`` connects it."""

    def __init__(self, login: Login, name: str, observer: ConnectionObserver) -> None:
        self.handlers: dict[bytes, Handler] = {}
        """Subscription id -> handler; may be changed at any time."""
        self.credential = login.credential()
        self.end_reason = ""
        self.refused = False
        self.lame_duck = False
        """The server said that it will stop soon."""
        self.silent = False
        """The server does not answer at the moment."""
        self.server: Server | None = None
        self._login = login
        self._name = name
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._parser = Parser(self.handlers, self)
        self._transport: asyncio.Transport | None = None
        self._closing: asyncio.Transport | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._pongs: deque[tuple[asyncio.Future[None] | None, float]] = deque()
        self._congested = False
        self._turn_open = False
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._encrypted = False
        self._greeted = False
        self._heard_s = 0.0
        self._look_due_s = 0.0
        self._ping_timer: asyncio.TimerHandle | None = None
        self._ended: asyncio.Event | None = None

    async def open(self, servers: Servers, server: Server, timeout_s: float) -> None:
        """Connect and log in. Raises BusError (Refused if the credential is not accepted)."""
        self.server = server
        self._encrypted = servers.tls is not None
        try:
            async with asyncio.timeout(timeout_s):
                await open_transport(lambda: self, server, servers.tls, servers.proxy_of(server))
                await self._ready
        except TimeoutError:
            self.abort("no answer in time")
            raise BusError(f"The bus server did not answer within {timeout_s:g} s.") from None
        except OSError as error:
            self.abort(str(error))
            raise BusError(f"The bus server cannot be reached: {error}.") from error
        except BaseException:
            self.abort("given up")
            raise
        self._look_later()

    @property
    def alive(self) -> bool:
        return self._transport is not None

    @property
    def was_made(self) -> bool:
        """Whether there was a transport at all, so that its end will be told."""
        return self._ended is not None

    def send(self, data: bytes) -> None:
        """Raises BusError when the connection has ended or too much is waiting to leave.

        The first of a turn of the event loop leaves at once, the others together at its end.
        """
        transport = self._transport
        if transport is None:
            raise BusError("The connection to the bus is lost.")
        if self._congested and self._waiting_bytes(transport) + len(data) > PENDING_BYTES_MAX:
            raise BusError("Too much is waiting to be sent to the bus.")
        if self._turn_open:
            self._rest.append(data)
            self._rest_bytes += len(data)
            if self._rest_bytes > _TOGETHER_BYTES_MAX:
                self._write_rest()
            return
        self._turn_open = True
        self._loop.call_soon(self._end_turn)
        transport.write(data)

    async def flush(self, timeout_s: float) -> None:
        """Return when the server has handled all that was sent, and all it had sent before has arrived.

        Raises BusError when the connection ends or the time is over.
        """
        pong: asyncio.Future[None] = self._loop.create_future()
        self.send(b"PING\r\n")
        self._pongs.append((pong, self._loop.time()))
        try:
            async with asyncio.timeout(timeout_s):
                await pong
        except TimeoutError:
            raise BusError(f"The bus did not answer within {timeout_s:g} s.") from None

    def close(self) -> None:
        """Let go in order: what was sent still leaves."""
        self.handlers.clear()
        self.end_reason = self.end_reason or "closed"
        self._write_rest()
        self._closing, self._transport = self._transport, None
        if self._closing is not None:
            self._closing.close()

    async def wait_ended(self, timeout_s: float) -> None:
        """After ``close`` or ``abort``: return when the transport is gone, made sure of after that time."""
        if self._ended is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            if self._closing is not None:
                self._closing.abort()
            await self._ended.wait()

    def abort(self, reason: str) -> None:
        """Let go at once."""
        self.end_reason = self.end_reason or reason
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # --- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every transport is a subclass (aiofastnet's and uvloop's are not), but all behave as one.
        self._transport = cast("asyncio.Transport", transport)
        self._ended = asyncio.Event()
        self._transport.set_write_buffer_limits(high=_PAUSE_AT_BYTES)

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        if self.silent:
            self._note_silent(False)
        try:
            self._parser.feed(data)
        except ProtocolError as error:
            _log.warning("bus connection dropped: %s", error.message)
            self.abort(error.message)

    def pause_writing(self) -> None:
        self._congested = True

    def resume_writing(self) -> None:
        self._congested = False

    def connection_lost(self, error: Exception | None) -> None:
        self.end_reason = self.end_reason or (str(error) if error else "closed by the server")
        self._transport = self._closing = None
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        kind = Refused if self.refused else BusError
        failure = kind(f"The connection to the bus ended: {self.end_reason}.")
        waiting = [self._ready, *(pong for pong, _ in self._pongs if pong is not None)]
        self._pongs.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(failure)
                future.exception()  # whoever waits gets it; nobody waiting is no fault
        if self._ended is not None:
            self._ended.set()
        self._observer.on_ended(self)

    # --- what the server says ---------------------------------------------------------------------

    def on_info(self, json_text: bytes) -> None:
        try:
            info = json.loads(json_text)
            nonce = str(info.get("nonce", ""))
            lame_duck = bool(info.get("ldm", False))
        except (ValueError, AttributeError):
            raise ProtocolError("the server's INFO cannot be read") from None
        if not self._greeted:
            self._greeted = True
            self._greet(nonce)
        elif lame_duck and not self.lame_duck:
            self.lame_duck = True
            self._observer.on_lame_duck(self)

    def on_ping(self) -> None:
        if self._transport is not None:
            self._transport.write(b"PONG\r\n")

    def on_pong(self) -> None:
        if not self._pongs:
            raise ProtocolError("the server sent an answer to no question")
        pong, _asked_s = self._pongs.popleft()
        if pong is not None and not pong.done():
            pong.set_result(None)

    def on_error(self, text: str) -> None:
        lowered = text.lower()
        if lowered.startswith("permissions violation"):
            self._observer.on_violation(text)
            return
        self.end_reason = text
        self.refused = any(word in lowered for word in _REFUSALS)
        # The server hangs up after these; do not wait for it.
        self.abort(text)

    def on_handler_failed(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "a handler of the bus failed", "exception": error})

    def _waiting_bytes(self, transport: asyncio.Transport) -> int:
        return transport.get_write_buffer_size() + self._rest_bytes

    def _end_turn(self) -> None:
        self._turn_open = False
        self._write_rest()

    def _write_rest(self) -> None:
        if self._rest and self._transport is not None:
            self._transport.write(b"".join(self._rest))
        self._rest.clear()
        self._rest_bytes = 0

    def _greet(self, nonce: str) -> None:
        if not nonce:
            # Such a server checks nobody, so that no subject would prove a key.
            raise ProtocolError("the server does not ask who we are")
        signature = base64.urlsafe_b64encode(self._login.sign(nonce.encode())).rstrip(b"=").decode()
        options: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "tls_required": self._encrypted,
            "headers": True,  # without them no server says that nobody hears a message
            "no_responders": True,
            "echo": False,
            "protocol": 1,
            "lang": "panal",
            "version": "1",
            "name": self._name,
            "jwt": self.credential,
            "sig": signature,
        }
        self.send(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        self._pongs.append((self._ready, self._loop.time()))

    # --- whether the server still answers ---------------------------------------------------------

    def _look_later(self) -> None:
        self._look_due_s = self._loop.time() + PING_INTERVAL_S
        self._ping_timer = self._loop.call_at(self._look_due_s, self._look)

    def _look(self) -> None:
        """Judge the oldest open question, or ask one."""
        if self._transport is None:
            return
        now_s = self._loop.time()
        if now_s - self._look_due_s <= OVERSLEPT_S:
            if not self._pongs:
                with contextlib.suppress(BusError):  # too much is waiting: asked again in a moment
                    self.send(b"PING\r\n")
                    self._pongs.append((None, now_s))
            elif not self._judged(now_s - max(self._heard_s, self._pongs[0][1])):
                return
        self._look_later()

    def _judged(self, silent_s: float) -> bool:
        """Whether the connection goes on after a silence of so long."""
        if silent_s > DEAD_AFTER_S:
            self.abort("the server does not answer")
            return False
        if silent_s > SILENT_AFTER_S and not self.silent:
            self._note_silent(True)
        return True

    def _note_silent(self, silent: bool) -> None:
        self.silent = silent
        self._observer.on_silent(self)
