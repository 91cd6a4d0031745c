"""Where the authority keeps its seeds and revocations: HOME/nats/authority.json, readable by its owner."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from panal.bus.credentials import Authority, Seeds
from panal.core.clock import Clock
from panal.core.errors import SettingsError
from panal.core.private_files import one_at_a_time, write_private, write_private_once

FILE_NAME = "authority.json"


class _Content(msgspec.Struct, kw_only=True):
    version: int = 1
    seeds: Seeds
    revocations: dict[str, int] = {}


def authority_path(home: Path) -> Path:
    return home / "nats" / FILE_NAME


def load_authority(path: Path, clock: Clock) -> Authority:
    """The authority in an existing file. Raises SettingsError naming the file."""
    content = _read(path)
    try:
        return Authority(content.seeds, content.revocations, clock)
    except ValueError:
        raise _damaged(path) from None


def create_or_load_authority(path: Path, clock: Clock, entropy: Callable[[int], bytes]) -> Authority:
    """Make the file (0600, folder 0700) if there is none. Two programs at once get the same authority."""
    if not path.exists():
        write_private_once(path, _bytes(_Content(seeds=Seeds.create(entropy))))
    return load_authority(path, clock)


def reread_revocations(path: Path, authority: Authority) -> None:
    """Take over what other programs of this installation revoked since. Raises SettingsError."""
    authority.merge_revocations(_read(path).revocations)


def save_revocations(path: Path, authority: Authority) -> None:
    """Add the authority's revocations to the file, and take over those that others wrote meanwhile."""
    try:
        with one_at_a_time(path):
            content = _read(path)
            authority.merge_revocations(content.revocations)
            content.revocations = authority.revocations
            write_private(path, _bytes(content))
    except OSError as error:
        raise SettingsError(f"The bus authority {path} cannot be written: {error.strerror}.") from error


def _read(path: Path) -> _Content:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Content)
    except OSError as error:
        raise SettingsError(f"The bus authority {path} cannot be read: {error.strerror}.") from error
    except (ValueError, msgspec.MsgspecError):
        raise _damaged(path) from None


def _damaged(path: Path) -> SettingsError:
    return SettingsError(f"The bus authority {path} is damaged; restore it from a backup.")


def _bytes(content: _Content) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content))
