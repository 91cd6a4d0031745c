"""Files that only their owner can read, written whole or not at all: keys, credentials, switches."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from panal.core.errors import SettingsError


def write_private(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Put ``content`` in place of what is there. Raises SettingsError naming the file.

    ``durable`` False: it need not survive a power cut, so the disk is not woken for it.
    """
    try:
        draft = _draft(path, content, durable=durable)
        try:
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise _not_writable(path, error) from error


def write_private_once(path: Path, content: bytes) -> None:
    """Write unless the file is there, also when two programs try at once. Raises SettingsError."""
    try:
        draft = _draft(path, content)
        try:
            os.link(draft, path)  # unlike rename it fails when another program was first
        except FileExistsError:
            return
        finally:
            draft.unlink()
    except OSError as error:
        raise _not_writable(path, error) from error


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Programs on one machine that change ``path`` wait for each other here; one that dies lets go.

    On Windows nobody waits. Raises OSError.
    """
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _draft(path: Path, content: bytes, *, durable: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return draft


def _not_writable(path: Path, error: OSError) -> SettingsError:
    return SettingsError(f"{path} cannot be written: {error.strerror}.")
