"""The programs that ``panal up`` starts, and their order of going."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from panal.core.errors import SettingsError

RESTARTS_MAX = 5
RESTARTS_WITHIN_S = 120.0
OUTPUT_LINE_BYTES_MAX = 64 * 1024


class Child:
    """One of panal's own programs. It ends when the pipe to its input does.

    ``notice`` is told in words that it waits for something, and that it waits no more.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        notice: Callable[[str], None] = lambda _words: None,
    ) -> None:
        self.name = name
        self._notice = notice
        self._waits = False
        self._arguments = list(arguments)
        self._environment = dict(environment)
        self._process: asyncio.subprocess.Process | None = None
        self.failure: dict[str, Any] = {}
        """The last event named ``failed`` that it said; empty while there was none."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start it in a session of its own, so that Ctrl-C reaches only the parent."""
        self.failure, self._waits = {}, False
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "panal",
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._environment,
            start_new_session=os.name == "posix",
            limit=OUTPUT_LINE_BYTES_MAX,
        )

    async def event(self) -> dict[str, Any]:
        """The next line it says. Raises SettingsError when it failed or ended."""
        assert self._process is not None and self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            status = await self._process.wait()
            raise SettingsError(f"The {self.name} ended at its start (status {status}); see its log.")
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "failed":
            self.failure = event
            await self._process.wait()
            raise SettingsError(str(event["message"]))
        self._tell_waiting(event)
        return event

    async def until(self, *names: str) -> dict[str, dict[str, Any]]:
        """All events up to and with the first one of these names, by name."""
        seen: dict[str, dict[str, Any]] = {}
        while not seen.keys() & set(names):
            event = await self.event()
            seen[event["event"]] = event
        return seen

    async def wait(self) -> int:
        """Its exit status. Whatever it still says is read, so that it never blocks."""
        assert self._process is not None and self._process.stdout is not None
        while line := await self._line(self._process.stdout):
            self._note(line)
        return await self._process.wait()

    async def _line(self, output: asyncio.StreamReader) -> bytes:
        try:
            return await output.readline()
        except ValueError:  # longer than any line of ours
            return b"{}"

    def _note(self, line: bytes) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            return
        if not isinstance(event, dict):
            return
        self._tell_waiting(event)
        if event.get("event") == "failed":
            self.failure = event

    def _tell_waiting(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "waiting":
            self._waits = True
            self._notice(f"The {self.name} is not ready. {event.get('message', '')}")
        elif event.get("event") == "ready" and self._waits:
            self._waits = False
            self._notice(f"The {self.name} is ready.")

    def reload(self) -> None:
        """Let it look at its certificate and log level again. Not available on Windows."""
        process = self._process
        if process is not None and process.returncode is None and sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)

    async def stop(self, grace_s: float) -> None:
        """Ask it to end in order, and kill it if it does not."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await self.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await self.wait()


class Restarts:
    """How often something may come back before it is given up."""

    def __init__(self) -> None:
        self._times_s: list[float] = []

    def next_pause_s(self, now_s: float) -> float | None:
        """Seconds to wait before the next start; None when it failed too often."""
        self._times_s = [at_s for at_s in self._times_s if now_s - at_s < RESTARTS_WITHIN_S]
        if len(self._times_s) >= RESTARTS_MAX:
            return None
        self._times_s.append(now_s)
        return float(0.2 * 2 ** len(self._times_s))
