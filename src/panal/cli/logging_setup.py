"""Where a program's log goes, and how much is written."""

import logging
from collections.abc import Callable
from pathlib import Path

from panal.core.errors import SettingsError
from panal.core.settings import Settings
from panal.telemetry.logs import configure, fields


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


def reread_level(reread: Callable[[], Settings]) -> None:
    """Take over the log's level from the settings as they are now. Faulty settings change nothing."""
    log = logging.getLogger("panal.log")
    try:
        level = reread().log.level
    except SettingsError as error:
        log.error("the log level stays: %s", error.message, extra=fields(action="log_level_kept"))
        return
    logging.getLogger().setLevel(level.upper())
    log.warning("the log level is %s now", level, extra=fields(action="log_level"))
