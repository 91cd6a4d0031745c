"""The four messages of the X11 protocol that asking for the idle time takes, over a local socket.

Spoken directly and not through libX11 or libxcb: libX11 ends the process when the X server goes away, both
wait without limit for a server that hangs, and neither is there on every machine.
Everything here is bounded by one deadline.
"""

import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from panal.core.clock import Clock

AUTHORITY_BYTES_MAX = 64 * 1024
SETUP_BYTES_MAX = 256 * 1024
SKIPPED_EVENTS_MAX = 64
COOKIE = b"MIT-MAGIC-COOKIE-1"
SLOW, GONE = "the X server does not answer", "the X server went away"
_LOCAL_FAMILY, _ANY_FAMILY = 256, 65535


class X11Error(Exception):
    """The X server cannot be asked; the text says why."""


def display_number(display: str) -> int:
    """The number in ``:0`` or ``unix:0.1``. Raises X11Error for a display on another machine."""
    host, separator, rest = display.rpartition(":")
    number = rest.split(".", 1)[0]
    if not separator or not number.isdecimal() or len(number) > 5:
        raise X11Error("DISPLAY names no display")
    if host not in ("", "unix"):
        raise X11Error("DISPLAY is not a display of this machine")
    return int(number)


def cookie_for(number: int, environment: Mapping[str, str]) -> bytes:
    """The cookie of a local display from the X authority file; empty when there is none."""
    name = environment.get("XAUTHORITY") or str(Path(environment.get("HOME", "/")) / ".Xauthority")
    try:
        with Path(name).open("rb") as stream:
            data = stream.read(AUTHORITY_BYTES_MAX)
    except OSError:
        return b""
    offset = 0
    while offset + 2 <= len(data):
        (family,) = struct.unpack_from(">H", data, offset)
        offset += 2
        texts = []
        for _ in range(4):
            if offset + 2 > len(data):
                return b""
            (length,) = struct.unpack_from(">H", data, offset)
            texts.append(data[offset + 2 : offset + 2 + length])
            offset += 2 + length
        _, display, kind, cookie = texts
        if family in (_LOCAL_FAMILY, _ANY_FAMILY) and display in (b"", b"%d" % number) and kind == COOKIE:
            return cookie
    return b""


class X11Slow(X11Error):
    """The answer has not come in time; it may be waited for again."""


@dataclass(slots=True)
class X11Connection:
    """One connection; after any X11Error but X11Slow it must be closed and made anew."""

    _socket: socket.socket
    _clock: Clock
    _deadline_s: float
    _root: int = 0
    _buffer: bytearray = field(default_factory=bytearray)

    @classmethod
    def open(cls, number: int, cookie: bytes, clock: Clock, within_s: float) -> "X11Connection":
        """Connect and shake hands. Raises X11Error."""
        path = f"/tmp/.X11-unix/X{number}"  # noqa: S108 - where X servers listen
        addresses = [path, "\0" + path] if sys.platform.startswith("linux") else [path]
        deadline_s = clock.monotonic_seconds() + within_s
        for address in addresses:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            made.settimeout(within_s)
            try:
                made.connect(address)
            except OSError:
                made.close()
                continue
            connection = cls(made, clock, deadline_s)
            try:
                connection._shake_hands(cookie)
            except X11Error:
                made.close()
                raise
            return connection
        raise X11Error("no X server answers on this display")

    def extension(self, name: bytes, within_s: float) -> int:
        """The opcode of an extension, 0 when the server has it not. Raises X11Error."""
        padded = _padded(name)
        self._deadline_s = self._clock.monotonic_seconds() + within_s
        self._send(struct.pack("<BBHHH", 98, 0, 2 + len(padded) // 4, len(name), 0) + padded)
        reply = self._reply()
        return reply[9] if reply[8] else 0

    def ask_idle(self, opcode: int, within_s: float) -> None:
        """Ask for the time since the last input. Raises X11Error."""
        self._deadline_s = self._clock.monotonic_seconds() + within_s
        self._send(struct.pack("<BBHI", opcode, 1, 2, self._root))

    def idle_ms(self, within_s: float) -> int:
        """The answer to ``ask_idle`` in milliseconds. Raises X11Slow, and then may be called again."""
        self._deadline_s = self._clock.monotonic_seconds() + within_s
        return int(struct.unpack_from("<I", self._reply(), 16)[0])

    def close(self) -> None:
        self._socket.close()

    def _shake_hands(self, cookie: bytes) -> None:
        name = COOKIE if cookie else b""
        head = struct.pack("<BBHHHHH", ord("l"), 0, 11, 0, len(name), len(cookie), 0)
        self._send(head + _padded(name) + _padded(cookie))
        status, reason_length, _, _, length = struct.unpack("<BBHHH", self._received(8))
        if 4 * length > SETUP_BYTES_MAX:
            raise X11Error("the X server's greeting is too long")
        rest = self._received(4 * length)
        if status != 1:
            text = rest[:reason_length].decode("ascii", "replace").strip()
            raise X11Error(f"the X server refuses: {text}"[:200])
        vendor_length, formats = struct.unpack_from("<H", rest, 16)[0], rest[21]
        screen = 32 + vendor_length + (-vendor_length) % 4 + 8 * formats
        if rest[20] < 1 or screen + 4 > len(rest):
            raise X11Error("the X server has no screen")
        (self._root,) = struct.unpack_from("<I", rest, screen)

    def _reply(self) -> bytes:
        for _ in range(SKIPPED_EVENTS_MAX):
            self._fill(32)
            kind, code = self._buffer[0], self._buffer[1]
            extra = 4 * int(struct.unpack_from("<I", self._buffer, 4)[0]) if kind == 1 else 0
            if extra > SETUP_BYTES_MAX:
                break
            message = self._received(32 + extra)
            if kind == 1:
                return message
            if kind == 0:
                raise X11Error(f"the X server answers with its error {code}")
        raise X11Error("the X server talks of other things")

    def _send(self, data: bytes) -> None:
        self._limit()
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise X11Error(SLOW if isinstance(error, TimeoutError) else GONE) from error

    def _received(self, count: int) -> bytes:
        self._fill(count)
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _fill(self, count: int) -> None:
        """Wait until so many bytes are there; what has come stays for the next try."""
        while len(self._buffer) < count:
            self._limit()
            try:
                more = self._socket.recv(count - len(self._buffer))
            except TimeoutError as error:
                raise X11Slow(SLOW) from error
            except OSError as error:
                raise X11Error(GONE) from error
            if not more:
                raise X11Error(GONE)
            self._buffer += more

    def _limit(self) -> None:
        left_s = self._deadline_s - self._clock.monotonic_seconds()
        if left_s <= 0:
            raise X11Slow(SLOW)
        self._socket.settimeout(left_s)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
