"""Whole installations for end-to-end tests: the panal command's own processes, on one or several hosts."""

import contextlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from panal.cli.api_client import Api

READY_S_MAX = 60.0


def free_ports(count: int) -> list[int]:
    """Ports that the kernel says are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """What ``condition`` gives once it is true; fails with ``what`` after ``seconds``."""
    ends_s = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > ends_s:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)


class Program:
    """One started command; its output is kept, it is ended with all its children."""

    def __init__(
        self, arguments: Sequence[str], environment: dict[str, str], prefix: Sequence[str] = ()
    ) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PANAL_")}
        cache = os.environ.get("PANAL_CACHE")
        if cache:
            clean["PANAL_CACHE"] = cache
        self.command = [*prefix, sys.executable, "-m", "panal", *arguments]
        self.process = subprocess.Popen(
            self.command,
            env={**clean, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            self._queue.put(line)
        self._queue.put(None)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait(self, seconds: float) -> int:
        status = self.process.wait(seconds)
        self._reader.join(5.0)
        return status

    def stop(self, seconds: float = 30.0) -> int:
        """Ctrl-C, then wait."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.wait(seconds)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the program and whatever it started."""
        with contextlib.suppress(psutil.Error):
            for each in [*psutil.Process(self.process.pid).children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    each.kill()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5.0)
        if self.process.stdout is not None:
            self.process.stdout.close()


def processes_naming(text: str) -> list[psutil.Process]:
    """Running processes whose command line holds ``text``."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.status() != psutil.STATUS_ZOMBIE and any(text in part for part in each.cmdline()):
                found.append(each)
    return found


class Installation:
    """``panal up`` in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.home = folder / "home"
        self.prefix = list(prefix)
        http, https, nats = free_ports(3)
        self.http_port = http
        self.environment = {
            "PANAL_HOME": str(self.home),
            "PANAL_GATEWAY__HTTP_PORT": str(http),
            "PANAL_GATEWAY__HTTPS_PORT": str(https),
            "PANAL_BUS__NATS_PORT": str(nats),
            **(environment or {}),
        }
        self.arguments = ["up", "--json", *arguments]
        self.program: Program | None = None
        self.ready: dict[str, Any] = {}

    def start(self) -> "Installation":
        self.program = Program(self.arguments, self.environment, self.prefix)
        self.ready = until(self._said_ready, READY_S_MAX, "panal up is ready")
        return self

    def _said_ready(self) -> dict[str, Any] | None:
        assert self.program is not None
        text = self.program.output
        if self.program.process.poll() is not None:
            raise AssertionError(f"panal up ended: {text}")
        start = text.find("{")
        if start < 0:
            return None
        try:
            found: dict[str, Any] = json.loads(text[start:])
        except ValueError:
            return None
        return found

    def stop(self) -> None:
        if self.program is not None:
            self.program.stop()
            self.program = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def key(self) -> str:
        """The first user key."""
        return str(self.ready["api_key"])

    @property
    def admin_key(self) -> str:
        return str(json.loads((self.home / "admin.json").read_text())["key"])

    @property
    def ca_file(self) -> Path:
        return self.home / "ca" / "ca-certificate.pem"

    def admin(self) -> Api:
        """The management API, where plain HTTP on loopback is reachable."""
        return Api(self.url, self.admin_key)

    def run(self, *arguments: str) -> Any:
        """An admin command with --json, as a person would run it on the gateway's host."""
        done = subprocess.run(
            [*self.prefix, sys.executable, "-m", "panal", *arguments, "--json"],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder with a short path, since some things inside have names of limited length."""
    folder = Path(tempfile.mkdtemp(prefix="pnl-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
