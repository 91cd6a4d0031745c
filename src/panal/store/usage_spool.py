"""Usage on its way to the store: a bounded folder of files that outlives the process.

A settlement is one line of JSON, written by one ``write`` before the answer's last bytes leave. Lines
fill a segment; a full one is closed and the next begun. Draining writes closed segments to the store,
oldest first, in batches, and removes a segment once all of it is there. Whatever step a kill comes
between, each line is in the folder or in the store, or in both; being written twice does no harm.
A kill of the process loses nothing; a power cut may lose what the system had not put on disk yet.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from panal.core.errors import CallerError, SettingsError, StoreError
from panal.ledger.values import Contribution, Settlement, UsageRecord
from panal.store.folder_lock import FolderLock

SEGMENT_BYTES = 1024 * 1024
BYTES_MAX = 256 * 1024 * 1024
BATCH_LINES = 250
DRAIN_EACH_S = 1.0
RETRY_S_MAX = 15.0

log = logging.getLogger("panal.store")

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Settlement)


class UsageSink(Protocol):
    """Where settlements end. Store implements it."""

    async def add_usage(
        self, records: Sequence[UsageRecord], contributions: Sequence[Contribution], /
    ) -> None:
        """Writes all or nothing; what is there already stays.

        Raises StoreError to try again later, CallerError where a value can never be stored.
        """
        ...


class UsageSpool:
    """One process's spool in a folder of its own; ``open`` before use.

    Files of an earlier process in the same folder are drained first, so give a gateway process the same
    folder again after a restart. ``bytes_max`` bounds the folder.
    """

    def __init__(
        self, folder: Path, *, bytes_max: int = BYTES_MAX, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._segment_bytes = min(segment_bytes, bytes_max)
        self._lock = FolderLock(folder)
        self._draining = asyncio.Lock()
        self._descriptor: int | None = None
        self._number = 0
        self._active_bytes = 0
        self._bytes = 0

    def open(self) -> None:
        """Takes the folder. Raises SettingsError when it cannot be written or another process has it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"The folder {self._folder} cannot be made ({error.strerror}).") from None
        self._lock.take()
        left = self._segments()
        self._number = _number(left[-1]) if left else 0
        self._bytes = sum(path.stat().st_size for path in left)

    def close(self) -> None:
        """Ends writing. What is not drained yet stays for the next start."""
        self._close_segment()
        self._lock.release()

    @property
    def full(self) -> bool:
        """Whether ``append`` would refuse; a gateway then takes no new requests."""
        return self._bytes >= self._bytes_max

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def append(self, settlement: Settlement) -> None:
        """Keeps a settlement. Raises StoreError when the spool is full or the disk refuses it."""
        if self.full:
            raise StoreError(
                f"Usage cannot be recorded: {self._bytes} bytes wait for the store, which is the limit."
            )
        line = _encoder.encode(settlement) + b"\n"
        try:
            self._write(line)
        except OSError as error:
            raise StoreError(f"Usage cannot be recorded: the disk says {error.strerror}.") from error
        self._active_bytes += len(line)
        self._bytes += len(line)
        if self._active_bytes >= self._segment_bytes:
            self._close_segment()

    async def drain(self, sink: UsageSink, *, segments_max: int | None = None) -> int:
        """Writes everything kept so far to the store, or its oldest ``segments_max`` files; the number of
        settlements. Raises StoreError.
        """
        async with self._draining:
            self._close_segment()
            drained = 0
            for path in self._segments()[:segments_max]:
                try:
                    drained += await self._drain_segment(path, sink)
                except OSError as error:
                    raise StoreError(f"The spool cannot be read: the disk says {error.strerror}.") from error
            return drained

    async def run(self, sink: UsageSink) -> None:
        """Drains each second until cancelled. While the store is away it waits longer and keeps all."""
        wait_s = DRAIN_EACH_S
        while True:
            try:
                await self.drain(sink)
                wait_s = DRAIN_EACH_S
            except StoreError as error:
                wait_s = min(wait_s * 2, RETRY_S_MAX)
                log.warning(
                    "usage waits for the store: %s", error.message,
                    extra={"action": "usage_waits", "waiting_bytes": self._bytes},
                )  # fmt: skip
            await asyncio.sleep(wait_s)

    def _write(self, line: bytes) -> None:
        if self._descriptor is None:
            self._number += 1
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._descriptor = os.open(self._path(self._number), flags, 0o600)
            self._active_bytes = 0
        written = os.write(self._descriptor, line)
        if written != len(line):
            os.ftruncate(self._descriptor, self._active_bytes)
            raise OSError(0, "there is no room for a whole record")

    def _close_segment(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    async def _drain_segment(self, path: Path, sink: UsageSink) -> int:
        raw = path.read_bytes()
        lines = raw.splitlines()
        damaged: list[bytes] = []
        for start in range(0, len(lines), BATCH_LINES):
            damaged += await _write_batch(lines[start : start + BATCH_LINES], sink)
        if damaged:
            self._set_aside(path, damaged)
        path.unlink()
        self._bytes -= len(raw)
        return len(lines) - len(damaged)

    def _set_aside(self, path: Path, damaged: list[bytes]) -> None:
        """Lines that cannot be read are kept for people, beside the spool, and said aloud."""
        aside = path.with_suffix(".damaged")
        aside.write_bytes(b"\n".join(damaged) + b"\n")
        log.error(
            "%d usage records cannot be read and were set aside in %s", len(damaged), aside.name,
            extra={"action": "usage_damaged"},
        )  # fmt: skip

    def _segments(self) -> list[Path]:
        found = (path for path in self._folder.glob("*.jsonl") if path.stem.isdecimal())
        return sorted(found, key=_number)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:012d}.jsonl"


def _number(path: Path) -> int:
    return int(path.stem)


async def _write_batch(lines: Sequence[bytes], sink: UsageSink) -> list[bytes]:
    """Writes the lines; returns those that are no settlements or that no database would take."""
    damaged: list[bytes] = []
    settlements: list[Settlement] = []
    for line in lines:
        try:
            settlements.append(_decoder.decode(line))
        except (msgspec.DecodeError, ValueError):
            damaged.append(line)
    try:
        await _add(settlements, sink)
    except CallerError:
        if len(lines) == 1:
            return list(lines)
        damaged = []
        for line in lines:
            damaged += await _write_batch([line], sink)
    return damaged


async def _add(settlements: Sequence[Settlement], sink: UsageSink) -> None:
    await sink.add_usage(
        [each.usage for each in settlements],
        [contribution for each in settlements for contribution in each.contributions],
    )
