"""What was measured of models on this machine's GPUs, kept in one small file of the node.

A record holds for one GPU (by UUID; empty: the processor), one model (its digest) and one engine; another
version of engine or driver makes it void.
"""

from pathlib import Path

import msgspec

from panal.core.errors import SettingsError
from panal.core.private_files import write_private

RECORDS_MAX = 256
FILE_BYTES_MAX = 1024 * 1024


class Calibration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """0 means not measured. ``estimate_bytes`` is what the next load is taken to need.

    ``memory_bytes`` is what the loaded engine held; ``out_of_memory``: how often the memory ran out at a
    load since the last one that went well.
    """

    gpu: str
    model: str
    engine: str
    driver: str = ""
    prefill_tokens_per_s: float = 0.0
    decode_s_per_token: float = 0.0
    load_s: float = 0.0
    memory_bytes: int = 0
    estimate_bytes: int = 0
    out_of_memory: int = 0
    measured_utc_s: float = 0.0


class _File(msgspec.Struct, kw_only=True):
    version: int = 1
    records: list[Calibration] = []


class CalibrationFile:
    """Read once, written at every change; a file that cannot be understood is as none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[tuple[str, str, str], Calibration] | None = None
        self.problem = ""
        """Why the file was not understood or written, empty when it was."""

    def find(self, gpu: str, model: str, engine: str, driver: str) -> Calibration:
        """The record, or an empty one where there is none for this engine and driver."""
        found = self._known().get((gpu, model, engine))
        if found is None or found.driver != driver:
            return Calibration(gpu=gpu, model=model, engine=engine, driver=driver)
        return found

    def keep(self, record: Calibration) -> None:
        """Put it in place of the old one; of very many the oldest are dropped."""
        known = self._known()
        known.pop((record.gpu, record.model, record.engine), None)
        known[record.gpu, record.model, record.engine] = record
        while len(known) > RECORDS_MAX:
            known.pop(next(iter(known)))
        try:
            write_private(self._path, msgspec.json.encode(_File(records=list(known.values()))), durable=False)
            self.problem = ""
        except SettingsError as error:
            self.problem = error.message

    def _known(self) -> dict[tuple[str, str, str], Calibration]:
        if self._records is None:
            self._records = {(each.gpu, each.model, each.engine): each for each in self._read()}
        return self._records

    def _read(self) -> list[Calibration]:
        try:
            with self._path.open("rb") as stream:
                data = stream.read(FILE_BYTES_MAX + 1)
            return msgspec.json.decode(data, type=_File).records[-RECORDS_MAX:]
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError, ValueError) as error:
            self.problem = f"the measured speeds cannot be read: {type(error).__name__}"
            return []
