"""A D-Bus daemon of a test's own, and python-dbusmock on it in the place of logind, UPower and desktops."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.support.installation import until

MOCK = "org.freedesktop.DBus.Mock"
SYSTEM_PYTHON = "/usr/bin/python3"


@cache
def python_with_dbusmock() -> str | None:
    """An interpreter that has dbusmock; Debian's package puts it into the system's own."""
    for python in (sys.executable, SYSTEM_PYTHON):
        found = subprocess.run([python, "-c", "import dbusmock"], capture_output=True, check=False)
        if found.returncode == 0:
            return python
    return None


class MockedBus:
    """One daemon and the mocks on it; ``environment`` makes the agent's sensors find it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.environment = {"DBUS_SYSTEM_BUS_ADDRESS": address, "DBUS_SESSION_BUS_ADDRESS": address}
        self._mocks: list[subprocess.Popen[bytes]] = []

    def mock(self, *words: str, name: str) -> subprocess.Popen[bytes]:
        """Start ``python -m dbusmock`` and wait until ``name`` is on the bus."""
        python = python_with_dbusmock()
        assert python is not None
        mock = subprocess.Popen(
            [python, "-m", "dbusmock", *words],
            env={**os.environ, **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._mocks.append(mock)
        until(lambda: self._owned(name), 20.0, f"{name} is on the bus")
        return mock

    def logind(self) -> subprocess.Popen[bytes]:
        return self.mock("--template", "logind", name="org.freedesktop.login1")

    def upower(self) -> subprocess.Popen[bytes]:
        return self.mock("--template", "upower", name="org.freedesktop.UPower")

    def add_method(self, service: str, path: str, interface: str, *method: str) -> None:
        """``method``: name, signature in and out, code."""
        self.call(service, path, MOCK, "AddMethod", "sssss", interface, *method)

    def call(
        self, service: str, path: str, interface: str, member: str, signature: str = "", *body: Any
    ) -> str:
        """By ``gdbus``-like means without a loop: busctl is not everywhere, dbus-python is with dbusmock."""
        python = python_with_dbusmock()
        assert python is not None
        code = (
            "import dbus, sys; a = eval(sys.argv[1]);"
            "o = dbus.bus.BusConnection(a[0]).get_object(a[1], a[2]);"
            "print(o.get_dbus_method(a[4], a[3])(*a[6], **({'signature': a[5]} if a[5] else {})))"
        )
        given = repr((self.address, service, path, interface, member, signature, body))
        done = subprocess.run(
            [python, "-c", code, given], capture_output=True, text=True, check=False, timeout=30
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def end(self) -> None:
        for mock in self._mocks:
            mock.terminate()
        for mock in self._mocks:
            mock.wait(20)

    def _owned(self, name: str) -> bool:
        daemon = "org.freedesktop.DBus"
        return self.call(daemon, "/org/freedesktop/DBus", daemon, "NameHasOwner", "s", name) == "1"


@contextlib.contextmanager
def mocked_bus() -> Iterator[MockedBus]:
    """Skips with the reason where dbus-daemon or dbusmock is missing."""
    if shutil.which("dbus-daemon") is None or python_with_dbusmock() is None:
        pytest.skip("dbus-daemon or python-dbusmock is not installed: scripts/system-packages installs them")
    daemon = subprocess.Popen(
        ["dbus-daemon", "--session", "--nofork", "--print-address"], stdout=subprocess.PIPE, text=True
    )
    assert daemon.stdout is not None
    bus = MockedBus(daemon.stdout.readline().strip())
    try:
        yield bus
    finally:
        bus.end()
        daemon.terminate()
        daemon.communicate(timeout=20)
