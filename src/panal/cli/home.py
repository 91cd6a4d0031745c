"""Where an installation keeps its things: HOME, by default in the user's data folder.

HOME/panal.toml      settings, written by people        HOME/ca, HOME/nats   keys of the installation
HOME/panal.db        the SQLite store                   HOME/spool           usage not yet in the store
HOME/agent           the node on this machine           HOME/logs            one file for each program
HOME/admin.json      the admin key for the commands     HOME/secrets         pepper of the API keys
HOME/metrics         what gateway processes counted

Of several gateway processes the first has spool/ and logs/gateway.log, number 2 has spool/2 and
logs/gateway-2.log, and so on.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from panal.core.errors import SettingsError
from panal.core.private_files import write_private, write_private_once
from panal.core.settings import Settings, load

PEPPER_BYTES = 32


class AdminAccess(msgspec.Struct):
    """How the admin commands reach the installation on this machine."""

    url: str
    key: str

    def __repr__(self) -> str:
        return f"AdminAccess({self.url!r})"


@dataclass(frozen=True)
class Home:
    """The folder and what stands where in it."""

    path: Path

    @property
    def settings_file(self) -> Path:
        return self.path / "panal.toml"

    @property
    def agent(self) -> Path:
        return self.path / "agent"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    def spool_of(self, number: int) -> Path:
        return self.spool if number == 1 else self.spool / str(number)

    def gateway_log(self, number: int) -> Path:
        return self.logs / ("gateway.log" if number == 1 else f"gateway-{number}.log")

    @property
    def admin_file(self) -> Path:
        return self.path / "admin.json"

    def store_url(self, settings: Settings) -> str:
        return settings.gateway.store_url or f"sqlite:///{self.path / 'panal.db'}"

    def settings(self, file: Path | None, environment: Mapping[str, str]) -> Settings:
        """From the given file or the home's own, then the environment. Raises SettingsError."""
        if file is None and self.settings_file.exists():
            file = self.settings_file
        return load(file, environment)

    def make(self) -> None:
        """Create the folder and see that it can be written. Raises SettingsError."""
        probe = self.path / f".write-{os.getpid()}"
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise SettingsError(
                f"The folder {self.path} cannot be written ({error.strerror}). "
                "Give another one with --home, or correct its rights."
            ) from error

    def pepper(self, entropy: Callable[[int], bytes]) -> bytes:
        """The secret that API keys are hashed with, made once. Without it no key is valid."""
        path = self.path / "secrets" / "pepper"
        if not path.exists():
            write_private_once(path, entropy(PEPPER_BYTES))
        content = path.read_bytes()
        if len(content) != PEPPER_BYTES:
            raise SettingsError(f"{path} is damaged; restore it from a backup.")
        return content

    def admin_access(self) -> AdminAccess | None:
        try:
            return msgspec.json.decode(self.admin_file.read_bytes(), type=AdminAccess)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise SettingsError(f"{self.admin_file} cannot be used: {error}") from error

    def follow_address(self, url: str) -> None:
        """The gateway's port is another one than when the admin key was kept: the commands must know."""
        access = self.admin_access()
        if access is not None and access.url != url:
            self.save_admin_access(AdminAccess(url, access.key))

    def save_admin_access(self, access: AdminAccess) -> None:
        write_private(self.admin_file, msgspec.json.encode(access))


def home_of(option: Path | None, environment: Mapping[str, str]) -> Home:
    """--home, else PANAL_HOME, else the user's data folder."""
    if option is not None:
        return Home(option.expanduser().absolute())
    given = environment.get("PANAL_HOME")
    if given:
        return Home(Path(given).expanduser().absolute())
    if sys.platform == "win32":
        base = Path(environment.get("LOCALAPPDATA", str(Path.home())))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Home(base / "panal")
