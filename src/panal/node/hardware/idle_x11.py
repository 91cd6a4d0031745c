"""Input idle time of an X11 session, from the screen saver extension."""

from collections.abc import Mapping
from math import inf

from panal.core.clock import Clock
from panal.node.hardware.idle import Idle, Unknown
from panal.node.hardware.x11_wire import X11Connection, X11Error, X11Slow, cookie_for, display_number

ANSWER_S_MAX = 0.05
"""How long one reading waits for the X server."""

PATIENCE_S = 0.6
"""A busy machine's X server may be late by so much: until then nothing is taken to have changed. With
the time between two polls it stays below the second within which new work must stop."""

CONNECT_S_MAX = 0.2
AGAIN_AFTER_S = 1.0


class X11Idle:
    """An IdleSensor. It connects when it is first read, and again when the X server has come back."""

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        self._environment = environment
        self._clock = clock
        self._connection: X11Connection | None = None
        self._opcode = 0
        self._not_before_s = -inf
        self._problem = "not connected yet"
        self._asked_s: float | None = None
        self._touched_s = inf
        """The last input as last told; infinite when this connection has told nothing yet."""

    def read(self) -> Idle | Unknown:
        if self._connection is None and self._clock.monotonic_seconds() < self._not_before_s:
            return Unknown(self._problem)
        try:
            return self._read(self._connected())
        except X11Error as error:
            self._problem = str(error)
            self.close()
            self._not_before_s = self._clock.monotonic_seconds() + AGAIN_AFTER_S
            return Unknown(self._problem)

    def _read(self, connection: X11Connection) -> Idle:
        if self._asked_s is None:
            self._asked_s = self._clock.monotonic_seconds()
            connection.ask_idle(self._opcode, ANSWER_S_MAX)
        try:
            idle_s = connection.idle_ms(ANSWER_S_MAX) / 1000
        except X11Slow:
            now_s = self._clock.monotonic_seconds()
            if self._touched_s == inf or now_s - self._asked_s > PATIENCE_S:
                raise
            return Idle(now_s - self._touched_s)
        self._asked_s = None
        self._touched_s = self._clock.monotonic_seconds() - idle_s
        return Idle(idle_s)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._asked_s = None
        self._touched_s = inf

    def _connected(self) -> X11Connection:
        if self._connection is not None:
            return self._connection
        number = display_number(self._environment.get("DISPLAY", ""))
        connection = X11Connection.open(
            number, cookie_for(number, self._environment), self._clock, CONNECT_S_MAX
        )
        try:
            if connection.extension(b"XWAYLAND", ANSWER_S_MAX):
                raise X11Error("X11 sees only a part of the input of a Wayland session")
            self._opcode = connection.extension(b"MIT-SCREEN-SAVER", ANSWER_S_MAX)
            if not self._opcode:
                raise X11Error("the X server has no screen saver extension")
        except X11Error:
            connection.close()
            raise
        self._connection = connection
        return connection
