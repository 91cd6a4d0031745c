"""One agent in a folder: a lock that the system takes back when its holder dies."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from panal.core.errors import SettingsError


@contextmanager
def only_one_agent(home: Path) -> Iterator[None]:
    """Hold the folder while the block runs. Raises SettingsError when an agent runs in it already."""
    try:
        descriptor = os.open(home / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise SettingsError(f"The folder {home} cannot be written ({error.strerror}).") from error
    try:
        _lock(descriptor)
    except OSError:
        os.close(descriptor)
        raise SettingsError(f"An agent already runs in {home}.") from None
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
