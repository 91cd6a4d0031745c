"""Input idle time on macOS. Written from Apple's documentation and not tried yet (docs/desk.md)."""

import ctypes
import sys
from typing import Any

from panal.node.hardware.idle import Idle, Unknown

FRAMEWORK = "/System/Library/Frameworks/ApplicationServices.framework/ApplicationServices"
HARDWARE_STATE = 1
ANY_INPUT = 0xFFFFFFFF


class MacIdle:
    """An IdleSensor for the session that the agent runs in."""

    def __init__(self) -> None:
        self._library: Any = None

    def read(self) -> Idle | Unknown:
        if sys.platform != "darwin":
            return Unknown("this is not macOS")
        try:  # type: ignore[unreachable,unused-ignore]
            if self._library is None:
                self._library = ctypes.CDLL(FRAMEWORK)
            return self._read(self._library.CGEventSourceSecondsSinceLastEventType)
        except (OSError, AttributeError) as error:
            return Unknown(f"macOS does not tell the time of the last input: {type(error).__name__}")

    def _read(self, seconds_since: Any) -> Idle | Unknown:
        seconds_since.restype = ctypes.c_double
        seconds_since.argtypes = (ctypes.c_int, ctypes.c_uint32)
        seconds = float(seconds_since(HARDWARE_STATE, ANY_INPUT))
        return Idle(seconds) if seconds >= 0 else Unknown("macOS gave a negative idle time")

    def close(self) -> None:
        """There is nothing to let go of."""
