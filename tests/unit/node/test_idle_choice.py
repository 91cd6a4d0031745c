"""Which sensor looks at which machine, and the wire of X11 without an X server."""

import ctypes
import struct
from pathlib import Path
from typing import Any

import pytest

from panal.core.clock import ManualClock
from panal.core.nodes import NodeClass
from panal.node.hardware.idle import Idle, NoSensor, Unknown, sensor_for
from panal.node.hardware.idle_macos import MacIdle
from panal.node.hardware.idle_windows import WindowsIdle
from panal.node.hardware.idle_x11 import X11Idle
from panal.node.hardware.x11_wire import X11Error, cookie_for, display_number


@pytest.mark.parametrize(
    ("platform", "environment", "kind"),
    [
        ("linux", {"DISPLAY": ":0"}, X11Idle),
        ("linux", {}, NoSensor),
        ("linux", {"DISPLAY": ":0", "WAYLAND_DISPLAY": "wayland-0"}, NoSensor),
        ("linux", {"DISPLAY": ":0", "XDG_SESSION_TYPE": "wayland"}, NoSensor),
        ("win32", {}, WindowsIdle),
        ("darwin", {}, MacIdle),
        ("freebsd14", {"DISPLAY": ":0"}, NoSensor),
    ],
)
def test_each_platform_has_its_sensor_or_an_honest_none(
    platform: str, environment: dict[str, str], kind: type
) -> None:
    sensor = sensor_for(NodeClass.DESKTOP, platform, environment, ManualClock())
    assert isinstance(sensor, kind)
    if kind is NoSensor:
        assert isinstance(sensor.read(), Unknown)
    sensor.close()


def test_a_dedicated_node_has_none() -> None:
    sensor = sensor_for(NodeClass.DEDICATED, "linux", {"DISPLAY": ":0"}, ManualClock())
    assert isinstance(sensor, NoSensor)


@pytest.mark.parametrize(("text", "number"), [(":0", 0), (":12.1", 12), ("unix:3", 3)])
def test_local_displays_are_understood(text: str, number: int) -> None:
    assert display_number(text) == number


@pytest.mark.parametrize(
    "text", ["", "0", "far:0", "localhost:10.0", ":x", ":", "[::1]:0", ":../x", ":1234567"]
)
def test_other_displays_are_refused(text: str) -> None:
    with pytest.raises(X11Error):
        display_number(text)
    assert isinstance(X11Idle({"DISPLAY": text}, ManualClock()).read(), Unknown)


def entry(family: int, number: bytes, kind: bytes, cookie: bytes) -> bytes:
    texts = [b"host", number, kind, cookie]
    return struct.pack(">H", family) + b"".join(struct.pack(">H", len(text)) + text for text in texts)


def test_the_cookie_of_the_display_is_found(tmp_path: Path) -> None:
    file = tmp_path / "authority"
    environment = {"XAUTHORITY": str(file)}
    assert cookie_for(0, environment) == b""
    file.write_bytes(
        entry(0, b"0", b"MIT-MAGIC-COOKIE-1", b"tcp")
        + entry(256, b"1", b"MIT-MAGIC-COOKIE-1", b"one")
        + entry(256, b"0", b"XDM", b"other")
        + entry(256, b"0", b"MIT-MAGIC-COOKIE-1", b"zero")
        + entry(65535, b"", b"MIT-MAGIC-COOKIE-1", b"any")
    )
    assert cookie_for(0, environment) == b"zero"
    assert cookie_for(1, environment) == b"one"
    assert cookie_for(7, environment) == b"any"
    file.write_bytes(entry(256, b"0", b"MIT-MAGIC-COOKIE-1", b"zero")[:-6])
    assert cookie_for(3, environment) == b""
    (tmp_path / ".Xauthority").write_bytes(entry(256, b"0", b"MIT-MAGIC-COOKIE-1", b"home"))
    assert cookie_for(0, {"HOME": str(tmp_path)}) == b"home"


class FakeWindows:
    """Recorded answers: input at 4294967000 ms, 96 ms before the counter turned over."""

    session = 1
    works = 1

    def GetCurrentProcessId(self) -> int:
        return 7

    def ProcessIdToSessionId(self, pid: int, session: Any) -> int:
        session._obj.value = self.session
        return 1

    def GetLastInputInfo(self, info: Any) -> int:
        info._obj.dwTime = 4_294_967_000
        return self.works

    def GetTickCount(self) -> int:
        return 1704


def test_windows_answers_are_read_across_the_turn_of_its_counter() -> None:
    windows = FakeWindows()
    assert WindowsIdle()._read(windows, windows) == Idle(2.0)
    windows.works = 0
    assert isinstance(WindowsIdle()._read(windows, windows), Unknown)
    windows.session = 0
    answer = WindowsIdle()._read(windows, windows)
    assert isinstance(answer, Unknown)
    assert "service" in answer.reason
    assert isinstance(WindowsIdle().read(), (Idle, Unknown))


def test_macos_answers_are_read() -> None:
    class Function:
        restype: Any = None
        argtypes: Any = None
        answer = 12.5

        def __call__(self, state: int, kind: int) -> float:
            assert self.restype is ctypes.c_double
            return self.answer

    function = Function()
    assert MacIdle()._read(function) == Idle(12.5)
    function.answer = -1.0
    assert isinstance(MacIdle()._read(function), Unknown)
    assert isinstance(MacIdle().read(), (Idle, Unknown))
