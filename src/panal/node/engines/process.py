"""A child program: started in a process group of its own, watched, ended for certain."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec
import psutil

from panal.core.errors import EngineFailed
from panal.node.engines.child import Greeting, Loading, Ready
from panal.node.engines.leftovers import Leftovers
from panal.node.engines.loading import Load
from panal.telemetry.logs import fields

TERMINATE_S_MAX = 2.0
KILL_S_MAX = 5.0
LOOK_EACH_S = 0.5
LOG_BYTES_MAX = 5 * 1024 * 1024
LOG_TAIL_BYTES = 2000

ENVIRONMENT_KEPT = (
    "PATH", "HOME", "USERPROFILE", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "PYTHONPATH", "PANAL_CACHE", "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
)  # fmt: skip
"""What a child sees of our environment; never a secret of ours."""


@dataclass(frozen=True, slots=True)
class Program:
    """How to start a child that speaks child.py's protocol.

    ``ready_s_max``: a start that makes no progress for so long has failed (see loading.py).
    """

    command: tuple[str, ...]
    log_path: Path
    ready_s_max: float = 60.0
    environment: dict[str, str] = field(default_factory=dict)


class EngineProcess:
    """One run of a program. Start it once, stop it once."""

    def __init__(self, program: Program, api_key: str) -> None:
        self._program = program
        self._api_key = api_key
        self._process: asyncio.subprocess.Process | None = None
        self._drain: asyncio.Task[int] | None = None
        self._leftovers = Leftovers(program.log_path.with_suffix(".running"))
        self.exited = asyncio.Event()

    @property
    def process_id(self) -> int | None:
        """None when it does not run."""
        if self._process is None or self._process.returncode is not None:
            return None
        return self._process.pid

    async def start(self) -> Ready:
        """Start and wait for the ready line. Raises EngineFailed with the end of its log."""
        left = await asyncio.to_thread(self._leftovers.end_all)
        if left:
            logging.getLogger("panal.node.engine").warning(
                "an earlier agent left an engine running; it was ended",
                extra=fields(action="leftovers_ended", pids=" ".join(map(str, left))),
            )
        with open_log(self._program.log_path) as log:
            self._process = await self._spawn(log)
        self._leftovers.started(self._process.pid)
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(Greeting(self._api_key)) + b"\n")
            ready = await self._until_ready(self._process)
        except (msgspec.DecodeError, TimeoutError, OSError, ValueError) as error:
            await self.stop(0.0)
            late = (
                f"no progress for {self._program.ready_s_max:g} s; "
                if isinstance(error, TimeoutError)
                else ""
            )
            raise EngineFailed(f"the engine did not start: {late}{self.why()}") from error
        except asyncio.CancelledError:
            await self.stop(0.0)
            raise
        self._drain = asyncio.get_running_loop().create_task(self._watch(), name="engine output")
        return ready

    async def _until_ready(self, process: asyncio.subprocess.Process) -> Ready:
        """The ready line. Raises TimeoutError when the load stands still, and what reading raises."""
        assert process.stdout is not None
        loop = asyncio.get_running_loop()
        load = Load(self._program.ready_s_max, loop.time())
        reading = loop.create_task(process.stdout.readline(), name="engine start")
        try:
            while True:
                await asyncio.wait({reading}, timeout=min(LOOK_EACH_S, self._program.ready_s_max / 4))
                now_s = loop.time()
                if reading.done():
                    said = msgspec.json.decode(reading.result(), type=dict)
                    if "loading" not in said:
                        return msgspec.convert(said, Ready)
                    load.told(msgspec.convert(said, Loading).loading, now_s)
                    reading = loop.create_task(process.stdout.readline(), name="engine start")
                else:
                    load.holds(_memory_bytes(process.pid), now_s)
                if load.over(now_s):
                    raise TimeoutError
        finally:
            reading.cancel()
            await asyncio.wait({reading})

    async def _spawn(self, log: IO[bytes]) -> asyncio.subprocess.Process:
        environment = {name: os.environ[name] for name in ENVIRONMENT_KEPT if name in os.environ}
        options: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        try:
            return await asyncio.create_subprocess_exec(
                *self._program.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**environment, **self._program.environment, **self._leftovers.begin()},
                **options,
            )
        except OSError as error:
            raise EngineFailed(f"the engine program cannot be started: {error}") from error

    async def _watch(self) -> int:
        """Read and forget what the child prints, so that it never blocks; note its end."""
        assert self._process is not None and self._process.stdout is not None
        while await self._process.stdout.read(4096):
            pass
        code = await self._process.wait()
        self.exited.set()
        return code

    async def stop(self, grace_s: float = TERMINATE_S_MAX) -> None:
        """End the program and all its children; past ``grace_s`` seconds they are killed."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        self._signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await process.wait()
        except TimeoutError:
            self._signal(process, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILL_S_MAX):
                    await process.wait()
        if self._drain is not None:
            await asyncio.wait([self._drain], timeout=KILL_S_MAX)
        else:
            await self._close_output(process)
        if process.returncode is not None:
            self._leftovers.forget()  # else the next start ends it
        self.exited.set()

    def kill(self) -> None:
        """End it this instant."""
        if self._process is not None:
            self._signal(self._process, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)

    async def _close_output(self, process: asyncio.subprocess.Process) -> None:
        """Read the output to its end, which closes the pipe."""
        assert process.stdout is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_S_MAX):
                while await process.stdout.read(4096):
                    pass

    @staticmethod
    def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        """To the whole group where there are groups."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                process.kill() if number != signal.SIGTERM else process.terminate()
            elif process.returncode is None:
                os.killpg(process.pid, number)

    def why(self) -> str:
        """The exit code and the last line of the log, for a person."""
        code = self._process.returncode if self._process is not None else None
        tail = log_tail(self._program.log_path)
        return f"exit code {code}; {tail}" if tail else f"exit code {code}"


def _memory_bytes(process_id: int) -> int:
    """Main memory that the program holds; 0 where that cannot be seen."""
    try:
        held: int = psutil.Process(process_id).memory_info().rss
    except psutil.Error:
        return 0
    return held


def open_log(path: Path) -> IO[bytes]:
    """Append to the log, beginning anew when it is large."""
    path.parent.mkdir(parents=True, exist_ok=True)
    large = path.exists() and path.stat().st_size > LOG_BYTES_MAX
    return path.open("wb" if large else "ab")


def log_tail(path: Path) -> str:
    """The last line that says something."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
