"""Input idle time of an X11 session, from the screen saver extension."""

from collections.abc import Mapping

from panal.core.clock import Clock
from panal.node.hardware.idle import Idle, Unknown
from panal.node.hardware.x11_wire import X11Connection, X11Error, cookie_for, display_number

ANSWER_S_MAX = 0.05
CONNECT_S_MAX = 0.1
AGAIN_AFTER_S = 1.0


class X11Idle:
    """An IdleSensor. It connects when it is first read, and again when the X server has come back."""

    def __init__(self, environment: Mapping[str, str], clock: Clock) -> None:
        self._environment = environment
        self._clock = clock
        self._connection: X11Connection | None = None
        self._opcode = 0
        self._not_before_s = float("-inf")
        self._problem = "not connected yet"

    def read(self) -> Idle | Unknown:
        try:
            connection = self._connected()
            return Idle(connection.idle_ms(self._opcode, ANSWER_S_MAX) / 1000)
        except X11Error as error:
            self._problem = str(error)
            self.close()
            self._not_before_s = max(self._not_before_s, self._clock.monotonic_seconds() + AGAIN_AFTER_S)
            return Unknown(self._problem)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> X11Connection:
        if self._connection is not None:
            return self._connection
        if self._clock.monotonic_seconds() < self._not_before_s:
            raise X11Error(self._problem)
        number = display_number(self._environment.get("DISPLAY", ""))
        connection = X11Connection.open(
            number, cookie_for(number, self._environment), self._clock, CONNECT_S_MAX
        )
        try:
            if connection.extension(b"XWAYLAND", ANSWER_S_MAX):
                raise X11Error("the input of a Wayland session cannot be read yet")
            self._opcode = connection.extension(b"MIT-SCREEN-SAVER", ANSWER_S_MAX)
            if not self._opcode:
                raise X11Error("the X server has no screen saver extension")
        except X11Error:
            connection.close()
            raise
        self._connection = connection
        return connection
