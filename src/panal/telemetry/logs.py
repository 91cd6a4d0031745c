"""Logs as JSON lines on the standard logging module.

    log = logging.getLogger("panal.node")
    log.info("engine started", extra=fields(action="engine_started", request_id=request_id, seconds=1.2))

``action`` is a fixed word that programs may search for; the message is for people. Prompts, answers and
keys are never given to a log; should a key slip into a text, it is masked here.
"""

import logging
import logging.handlers
import traceback
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

import msgspec

from panal.telemetry.redaction import harmless, is_harmless

_FIELDS = "panal_fields"
FIELDS_MAX = 24
NAME_LENGTH_MAX = 64


def fields(*, action: str, **values: str | float | bool | None) -> dict[str, Any]:
    """The ``extra`` of a log call: ``action`` and a few plain values, such as ``request_id``."""
    return {_FIELDS: {"action": action, **values}}


def note(log: logging.Logger, message: str, said: msgspec.Struct) -> None:
    """``log.info`` for what is said once a request: without looking for the caller's file and line, and
    with fields whose names and types are known. ``said`` has an ``action`` and otherwise texts, whole
    numbers, finite floats, booleans and None; no field is named like one of the line's own.
    """
    if log.isEnabledFor(logging.INFO):
        record = logging.LogRecord(log.name, logging.INFO, "", 0, message, None, None)
        record.__dict__[_FIELDS] = said
        log.handle(record)


class JsonLines(logging.Formatter):
    """One record as one line of JSON: time, level, logger, program, message, and its fields."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program
        self._encoder = msgspec.json.Encoder()

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "utc_s": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "program": self._program,
            "message": _message(record),
        }
        given = getattr(record, _FIELDS, None)
        if isinstance(given, msgspec.Struct):
            if (quick := self._at_once(line, given)) is not None:
                return quick
            given = msgspec.structs.asdict(given)
        line["message"] = harmless(line["message"])
        if isinstance(given, Mapping):
            for name, value in list(given.items())[:FIELDS_MAX]:
                line.setdefault(harmless(str(name))[:NAME_LENGTH_MAX], _plain(value))
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = type(error).__name__
            line["trace"] = [harmless(part) for part in traceback.format_exception(error, limit=-12)[-16:]]
        return self._encoder.encode(line).decode()

    def _at_once(self, line: dict[str, Any], said: msgspec.Struct) -> str | None:
        """The line if it can be seen as a whole that nothing in it must be changed, else None.

        A gateway writes one for each request; looking at every field by itself costs ten times as much.
        """
        try:
            text = (self._encoder.encode(line)[:-1] + b"," + self._encoder.encode(said)[1:]).decode()
        except UnicodeEncodeError:  # half a character
            return None
        return text if is_harmless(text) and "\\" not in text else None


class PrivateFiles(logging.handlers.RotatingFileHandler):
    """Turned over by size; every file is made readable by its owner only.

    The parent formats each record twice and asks the disk three times whether the file is full; a gateway
    writes a line for each request, so the size is kept here.
    """

    _size_bytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, into a new file if the old one would grow too large."""
        try:
            line = (self.format(record) + self.terminator).encode()
            if self.stream is None:
                self.stream = self._open()
            if self._size_bytes and 0 < self.maxBytes <= self._size_bytes + len(line):
                self.doRollover()
                self.stream = self._open()
            self.stream.buffer.write(line)
            self.stream.buffer.flush()
            self._size_bytes += len(line)
        except Exception:  # noqa: BLE001 - a log must never fail its caller; logging says it on stderr
            self.handleError(record)

    def _open(self) -> TextIOWrapper:
        path = Path(self.baseFilename)
        path.touch(mode=0o600, exist_ok=True)
        self._size_bytes = path.stat().st_size
        return super()._open()


def configure(
    *,
    program: str,
    level: str,
    file: Path | None = None,
    file_bytes_max: int = 10 * 1024 * 1024,
    keep: int = 5,
    stream: TextIO | None = None,
    root: logging.Logger | None = None,
) -> None:
    """Replace the handlers of ``root`` (default: logging's root) by JSON lines to file and stream.

    ``level`` is debug, info, warning or error. The file turns over at ``file_bytes_max`` bytes and
    ``keep`` old ones stay; it is readable by its owner only. Raises OSError when it cannot be written.
    """
    if root is None:
        root = logging.getLogger()
        # No line names thread or process, and finding them out costs more than writing the line.
        logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    handlers: list[logging.Handler] = []
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(
            PrivateFiles(file, maxBytes=file_bytes_max, backupCount=keep, encoding="utf-8", delay=True)
        )
    if stream is not None:
        handlers.append(logging.StreamHandler(stream))
    for handler in handlers:
        handler.setFormatter(JsonLines(program))
        root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return f"{record.msg} (its arguments do not fit)"


def _plain(value: object) -> str | float | bool | None:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    return harmless(str(value))
