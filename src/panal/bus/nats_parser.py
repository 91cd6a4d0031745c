"""Bytes from a NATS server to calls, whatever the pieces they come in."""

from collections.abc import Callable
from typing import Protocol

from panal.core.errors import ProtocolError

Handler = Callable[[bytes, bytes], None]
"""Takes subject and payload of one message. Must not block and not raise.

A message with headers, which among us only the server itself sends, has them before its payload.
"""

PAYLOAD_BYTES_MAX = 8 * 1024 * 1024
"""Beyond this the stream is taken for damaged; what panal accepts is decided by protocol.codec."""

LINE_BYTES_MAX = 64 * 1024


class ServerEvents(Protocol):
    """What a server says beside messages."""

    def on_info(self, json_text: bytes) -> None: ...

    def on_ping(self) -> None: ...

    def on_pong(self) -> None: ...

    def on_error(self, text: str) -> None: ...

    def on_handler_failed(self, error: Exception) -> None: ...


class Parser:
    """Feed it every piece in order. ``handlers`` maps subscription ids to handlers and may change."""

    def __init__(self, handlers: dict[bytes, Handler], events: ServerEvents) -> None:
        self._handlers = handlers
        self._events = events
        self._rest = bytearray()
        self._wanted = 0

    def feed(self, data: bytes) -> None:
        """Raises ProtocolError if the stream cannot be understood; nothing may be fed after that."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return
            data = bytes(self._rest)
            self._rest.clear()
        position = 0
        end = len(data)
        handlers = self._handlers
        while position < end:
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                self._keep(data, position, end + 1)
                return
            if not data.startswith((b"MSG ", b"HMSG "), position):
                self._control(data[position:line_end])
                position = line_end + 2
                continue
            words = data[position:line_end].split()
            start = line_end + 2
            try:
                subject, sid, stop = words[1], words[2], start + int(words[-1])
            except (IndexError, ValueError):
                raise ProtocolError("the server sent a MSG line that is none") from None
            if not start <= stop <= start + PAYLOAD_BYTES_MAX:
                raise ProtocolError("the server announced a message of impossible size")
            if stop + 2 > end:
                self._keep(data, position, stop + 2)
                return
            if data[stop : stop + 2] != b"\r\n":
                raise ProtocolError("the server's message does not end where it should")
            position = stop + 2
            handler = handlers.get(sid)
            if handler is not None:
                try:
                    handler(subject, data[start:stop])
                except Exception as error:  # noqa: BLE001 - a faulty handler must not cut the bus for all
                    self._events.on_handler_failed(error)

    def _keep(self, data: bytes, position: int, wanted_end: int) -> None:
        """Keep what is incomplete; nothing is parsed again before ``wanted_end`` was received."""
        self._rest += data[position:]
        self._wanted = wanted_end - position
        if self._wanted > LINE_BYTES_MAX and b"\r\n" not in self._rest:
            raise ProtocolError("the server sent a line without an end")

    def _control(self, line: bytes) -> None:
        if len(line) > LINE_BYTES_MAX:
            raise ProtocolError("the server sent too long a line")
        word, _, rest = line.partition(b" ")
        if word == b"PING":
            self._events.on_ping()
        elif word == b"PONG":
            self._events.on_pong()
        elif word == b"INFO":
            self._events.on_info(rest)
        elif word == b"-ERR":
            self._events.on_error(rest.decode("utf-8", "replace").strip().strip("'"))
        elif word != b"+OK":
            raise ProtocolError("the server sent a line that is not NATS")
