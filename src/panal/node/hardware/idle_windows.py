"""Input idle time on Windows. Written from Microsoft's documentation and not tried yet (docs/desk.md)."""

import ctypes
import sys
from typing import Any

from panal.node.hardware.idle import Idle, Unknown

WRAP_MS = 2**32


class LastInputInfo(ctypes.Structure):
    _fields_ = (("cbSize", ctypes.c_uint), ("dwTime", ctypes.c_uint))


class WindowsIdle:
    """An IdleSensor for the session that the agent runs in; a service in session 0 sees nobody."""

    def read(self) -> Idle | Unknown:
        if sys.platform != "win32":
            return Unknown("this is not Windows")
        return self._read(ctypes.windll.user32, ctypes.windll.kernel32)  # type: ignore[unreachable,unused-ignore]

    def _read(self, user32: Any, kernel32: Any) -> Idle | Unknown:
        session = ctypes.c_uint(0)
        if not kernel32.ProcessIdToSessionId(kernel32.GetCurrentProcessId(), ctypes.byref(session)):
            return Unknown("Windows does not tell the agent's session")
        if session.value == 0:
            return Unknown("the agent must run inside the owner's session, not as a service")
        info = LastInputInfo(ctypes.sizeof(LastInputInfo), 0)
        if not user32.GetLastInputInfo(ctypes.byref(info)):
            return Unknown("Windows does not tell the time of the last input")
        return Idle((kernel32.GetTickCount() - info.dwTime) % WRAP_MS / 1000)

    def close(self) -> None:
        """There is nothing to let go of."""
