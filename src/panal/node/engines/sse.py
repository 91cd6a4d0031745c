"""Server-sent events, taken apart as the bytes arrive. Pure."""

from panal.core.errors import ProtocolError


class SseParser:
    """Bytes in any pieces to the data of whole events.

    Lines may end in LF, CRLF or CR; comments and fields other than ``data`` are ignored; several data
    lines of one event are joined by LF. An event larger than ``event_bytes_max`` raises ProtocolError.
    """

    def __init__(self, event_bytes_max: int) -> None:
        self._event_bytes_max = event_bytes_max
        self._rest = b""
        self._after_carriage_return = False
        self._lines: list[bytes] = []
        self._event_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that ends within ``data``."""
        if self._after_carriage_return or b"\r" in data:
            data = self._with_plain_line_ends(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._event_bytes_max:
            raise ProtocolError("an event of the engine is too large")
        events: list[bytes] = []
        for line in lines:
            if not line:
                if self._lines:
                    self._end_event(events)
            elif line.startswith(b"data"):
                self._add(line)
        return events

    def _with_plain_line_ends(self, data: bytes) -> bytes:
        if self._after_carriage_return and data.startswith(b"\n"):
            data = data[1:]
            if not data:
                self._after_carriage_return = False
                return data
        if data:
            self._after_carriage_return = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _add(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name != b"data":
            return
        value = value[1:] if value.startswith(b" ") else value
        self._lines.append(value)
        self._event_bytes += len(value)
        if self._event_bytes > self._event_bytes_max:
            raise ProtocolError("an event of the engine is too large")

    def _end_event(self, events: list[bytes]) -> None:
        events.append(self._lines[0] if len(self._lines) == 1 else b"\n".join(self._lines))
        self._lines = []
        self._event_bytes = 0
