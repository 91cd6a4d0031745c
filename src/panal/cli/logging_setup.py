"""Where a program's log goes."""

from pathlib import Path

from panal.core.errors import SettingsError
from panal.core.settings import Settings
from panal.telemetry.logs import configure


def log_to(program: str, file: Path, settings: Settings) -> None:
    """Send the program's log to ``file``. Raises SettingsError when it cannot be written."""
    try:
        configure(
            program=program,
            level=settings.log.level,
            file=file,
            file_bytes_max=settings.log.file_bytes_max,
            keep=settings.log.keep,
        )
    except OSError as error:
        raise SettingsError(f"The log {file} cannot be written ({error.strerror}).") from error
