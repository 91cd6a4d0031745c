"""A lock on a folder that the system takes back when its holder dies, however it dies."""

import os
import sys
from pathlib import Path

from panal.core.errors import SettingsError

_NAME = "owner.lock"


class FolderLock:
    """Held from ``take`` to ``release`` or the process's end."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._descriptor: int | None = None

    def take(self) -> None:
        """Raises SettingsError when another process has it, or the folder cannot be written."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as error:
            raise SettingsError(
                f"The folder {self._path.parent} cannot be written ({error.strerror})."
            ) from None
        try:
            _lock(descriptor)
        except OSError:
            os.close(descriptor)
            raise SettingsError(f"Another program uses the folder {self._path.parent}.") from None
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
