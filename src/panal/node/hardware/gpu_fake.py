"""A stand-in for the pynvml module: answers and errors come from a file, the engine's memory is real.

It stands exactly where NVIDIA's bindings stand, so everything above it is the code that real GPUs meet.
The file (TOML) describes GPUs and what happens to them; it is read again when it has changed. Its form is
explained in docs/hardware.md.
"""

import importlib
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import psutil

from panal.core.clock import Clock
from panal.core.errors import SettingsError
from panal.core.gpus import MIB

FILE_BYTES_MAX = 256 * 1024
HANG_S_MAX = 600.0

EngineProcesses = Callable[[], Mapping[str, Collection[int]]]
"""By the UUID of the GPU they were placed on: our engine's processes with all that they started."""


class FakeProcess(msgspec.Struct, forbid_unknown_fields=True):
    """A program on a GPU. ``memory_mib`` left out: not told, as on Windows."""

    pid: int
    kind: Literal["compute", "graphics", "both"] = "graphics"
    memory_mib: int | None = None
    busy_percent: int = 0


class FakeGpu(msgspec.Struct, forbid_unknown_fields=True):
    """One GPU at the start. ``used_mib`` is what is in use beside the named programs and our engine."""

    uuid: str
    name: str
    memory_total_mib: int
    used_mib: int = 0
    busy_percent: int = 0
    temperature_c: int = 40
    power_w: float = 20.0
    power_limit_w: float = 200.0
    clock_mhz: int = 1500
    energy_j: float = 0.0
    throttle_bits: int = 0
    gone: bool = False
    process: list[FakeProcess] = []


class FakeEvent(msgspec.Struct, forbid_unknown_fields=True):
    """From ``at_s`` seconds after the start on. ``gpu`` empty: all of them, and the driver itself.

    ``set`` changes fields of FakeGpu; ``error`` is a name of NVML without ``NVML_ERROR_``, empty again
    for none, of one ``call`` or of all; ``hang_s``: so long does each call take.
    """

    at_s: float
    gpu: str = ""
    set: dict[str, Any] = {}
    error: str | None = None
    call: str = ""
    hang_s: float | None = None


class FakeMachine(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    gpu: list[FakeGpu] = []
    event: list[FakeEvent] = []
    driver: str = "fake"


class FakeNvml:
    """Use it from one thread at a time. Raises SettingsError at once for a file that is wrong."""

    def __init__(self, file: Path, clock: Clock, engine: EngineProcesses = dict) -> None:
        self._file = file
        self._clock = clock
        self.engine = engine
        self._pynvml = importlib.import_module("pynvml")
        self._mark = (0, 0)
        self._machine = FakeMachine()
        self._begun_s = clock.monotonic_seconds()
        self._gpus: dict[str, FakeGpu] = {}
        self._errors: dict[tuple[str, str], str] = {}
        self._hang_s = 0.0
        self._energy_j: dict[str, float] = {}
        self._energy_at_s = self._begun_s
        self._look()

    def __getattr__(self, name: str) -> Any:
        """Constants and errors are the real ones."""
        return getattr(self._pynvml, name)

    # --- the calls that panal makes, with NVML's own names and units

    def nvmlInit(self) -> None:  # noqa: N802
        self._called("nvmlInit")

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Always possible."""

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        self._called("nvmlSystemGetDriverVersion")
        return self._machine.driver

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._called("nvmlDeviceGetCount")
        return len(self._present())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        present = self._present()
        if index >= len(present):
            raise self._error("NOT_FOUND")
        self._called("nvmlDeviceGetHandleByIndex", present[index].uuid)
        return present[index].uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return self._gpu("nvmlDeviceGetUUID", handle).uuid

    def nvmlDeviceGetName(self, handle: str) -> str:  # noqa: N802
        return self._gpu("nvmlDeviceGetName", handle).name

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        gpu = self._gpu("nvmlDeviceGetMemoryInfo", handle)
        programs_mib = sum(each.memory_mib or 0 for each in gpu.process)
        total = gpu.memory_total_mib * MIB
        used = (gpu.used_mib + programs_mib) * MIB + sum(self._engine_memory(handle).values())
        return SimpleNamespace(total=total, used=min(used, total), free=max(0, total - used))

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        gpu = self._gpu("nvmlDeviceGetUtilizationRates", handle)
        busy = min(100, gpu.busy_percent + sum(each.busy_percent for each in gpu.process))
        return SimpleNamespace(gpu=busy, memory=busy // 2)

    def nvmlDeviceGetTemperature(self, handle: str, _sensor: int) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetTemperature", handle).temperature_c

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return round(self._gpu("nvmlDeviceGetPowerUsage", handle).power_w * 1000)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:  # noqa: N802
        return round(self._gpu("nvmlDeviceGetEnforcedPowerLimit", handle).power_limit_w * 1000)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        gpu = self._gpu("nvmlDeviceGetTotalEnergyConsumption", handle)
        return round((gpu.energy_j + self._energy_j.get(handle, 0.0)) * 1000)

    def nvmlDeviceGetClockInfo(self, handle: str, _clock: int) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetClockInfo", handle).clock_mhz

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetCurrentClocksEventReasons", handle).throttle_bits

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetCurrentClocksThrottleReasons", handle).throttle_bits

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        gpu = self._gpu("nvmlDeviceGetComputeRunningProcesses", handle)
        own = [
            SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in self._engine_memory(handle).items()
        ]
        return own + [_seen(each) for each in gpu.process if each.kind != "graphics"]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        gpu = self._gpu("nvmlDeviceGetGraphicsRunningProcesses", handle)
        return [_seen(each) for each in gpu.process if each.kind != "compute"]

    def nvmlDeviceGetProcessUtilization(self, handle: str, _since: int) -> list[Any]:  # noqa: N802
        gpu = self._gpu("nvmlDeviceGetProcessUtilization", handle)
        stamp = int(self._clock.monotonic_seconds() * 1e6)
        busy = [each for each in gpu.process if each.busy_percent]
        if not busy:
            raise self._error("NOT_FOUND")
        return [SimpleNamespace(pid=each.pid, smUtil=each.busy_percent, timeStamp=stamp) for each in busy]

    # --- inside

    def _present(self) -> list[FakeGpu]:
        return [gpu for gpu in self._gpus.values() if not gpu.gone]

    def _gpu(self, call: str, handle: str) -> FakeGpu:
        self._called(call, handle)
        gpu = self._gpus.get(handle)
        if gpu is None or gpu.gone:
            raise self._error("GPU_IS_LOST")
        return gpu

    def _called(self, call: str, uuid: str = "") -> None:
        self._look()
        if self._hang_s:
            time.sleep(min(self._hang_s, HANG_S_MAX))
        for key in ((uuid, call), (uuid, ""), ("", call), ("", "")):
            if self._errors.get(key):
                raise self._error(self._errors[key])

    def _error(self, name: str) -> Exception:
        value = getattr(self._pynvml, f"NVML_ERROR_{name}")
        error: Exception = self._pynvml.NVMLError(value)
        return error

    def _engine_memory(self, uuid: str) -> dict[int, int]:
        """What the engine's processes hold of this machine's memory, as if it were the GPU's."""
        held = {}
        for pid in self.engine().get(uuid, ()):
            try:
                held[pid] = psutil.Process(pid).memory_info().rss
            except psutil.Error:
                continue
        return held

    def _look(self) -> None:
        """Read the file if it has changed, and let happen what is due."""
        found = self._file.stat() if self._file.exists() else None
        mark = (found.st_mtime_ns, found.st_size) if found is not None else (0, 0)
        if found is None and not self._gpus:
            raise SettingsError(f"There is no file {self._file} for --fake-hardware.")
        if found is not None and mark != self._mark:
            self._machine = load_machine(self._file)
            self._mark = mark
        now_s = self._clock.monotonic_seconds()
        for gpu in self._present():
            joule = gpu.power_w * (now_s - self._energy_at_s)
            self._energy_j[gpu.uuid] = self._energy_j.get(gpu.uuid, 0.0) + joule
        self._energy_at_s = now_s
        self._happen(now_s - self._begun_s)

    def _happen(self, elapsed_s: float) -> None:
        gpus = {gpu.uuid: gpu for gpu in self._machine.gpu}
        errors: dict[tuple[str, str], str] = {}
        hang_s = 0.0
        for event in self._machine.event:
            if event.at_s > elapsed_s:
                continue
            for uuid in [event.gpu] if event.gpu else list(gpus):
                if event.set:
                    gpus[uuid] = msgspec.convert({**msgspec.to_builtins(gpus[uuid]), **event.set}, FakeGpu)
            if event.error is not None:
                errors[event.gpu, event.call] = event.error
            if event.hang_s is not None:
                hang_s = event.hang_s
        self._gpus, self._errors, self._hang_s = gpus, errors, hang_s


def load_machine(file: Path) -> FakeMachine:
    """The file, checked. Raises SettingsError with what is wrong."""
    try:
        with file.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise SettingsError(f"{file} is too long for a description of hardware.")
        machine = msgspec.toml.decode(data, type=FakeMachine)
        known = {gpu.uuid for gpu in machine.gpu}
        if len(known) != len(machine.gpu):
            raise SettingsError(f"{file} names a GPU twice.")
        errors = importlib.import_module("pynvml")
        for event in machine.event:
            if event.gpu and event.gpu not in known:
                raise SettingsError(f"{file}: there is no GPU '{event.gpu}'.")
            if event.error and not hasattr(errors, f"NVML_ERROR_{event.error}"):
                raise SettingsError(f"{file}: NVML knows no error '{event.error}'.")
            for gpu in machine.gpu:
                msgspec.convert({**msgspec.to_builtins(gpu), **event.set}, FakeGpu)
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise SettingsError(f"{file} describes no hardware: {error}.") from error
    return machine


def _seen(process: FakeProcess) -> Any:
    held = None if process.memory_mib is None else process.memory_mib * MIB
    return SimpleNamespace(pid=process.pid, usedGpuMemory=held)
