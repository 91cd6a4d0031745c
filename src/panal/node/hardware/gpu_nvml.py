"""NVIDIA's GPUs through NVML. ``module`` is pynvml (nvidia-ml-py), or what stands in its place.

Every call may raise any NVMLError: a fact that one GPU does not tell is None, a GPU that the driver calls
lost is lost, and a driver that fails as a whole is asked afresh at the next look.
"""

import ctypes
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psutil

from panal.core.gpus import GpuFacts, GpuProcess, GpuVendor
from panal.node.hardware.gpu_reading import DriverFailed, NoDriver

T = TypeVar("T")

THROTTLE_WORDS = {
    0x0004: "power_cap",
    0x0008: "hw_slowdown",
    0x0010: "sync_boost",
    0x0020: "sw_thermal",
    0x0040: "hw_thermal",
    0x0080: "power_brake",
    0x0200: "board_limit",
    0x0400: "reliability",
}
"""Clock event reasons that slow a GPU down; idle, chosen and display clocks do not."""

LOST = ("GPU_IS_LOST", "RESET_REQUIRED")
ABSENT = ("LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED")


def library_is_there() -> bool:
    """Whether NVIDIA's library can be loaded; asked before its bindings, which are large, are imported."""
    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def nvml_module() -> Any:
    """pynvml. Raises NoDriver where NVIDIA's library is not there."""
    if not library_is_there():
        raise NoDriver("there is no NVIDIA driver")
    return importlib.import_module("pynvml")


class NvmlReader:
    """A GpuReader. ``load`` gives the module and may raise NoDriver.

    ``pid_seen`` says whether a process is one of this system's: in a container the driver may tell pids
    of the host, which mean nothing here.
    """

    def __init__(
        self, load: Callable[[], Any] = nvml_module, *, pid_seen: Callable[[int], bool] = psutil.pid_exists
    ) -> None:
        self._load = load
        self._pid_seen = pid_seen
        self._nvml: Any = None
        self._begun = False
        self._driver = ""
        self._stamps: dict[str, int] = {}

    def read(self) -> Sequence[GpuFacts]:
        """See GpuReader."""
        if self._nvml is None:
            self._nvml = self._load()
        nvml = self._nvml
        try:
            if not self._begun:
                nvml.nvmlInit()
                self._begun = True
                self._driver = str(self._told(nvml.nvmlSystemGetDriverVersion) or "")
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            was_there = self._begun or bool(self._driver)
            self.close()
            if _is(nvml, error, ABSENT) and not was_there:
                raise NoDriver("there is no NVIDIA driver") from error
            raise DriverFailed(f"NVML fails: {error}") from error
        found = []
        for index in range(count):
            facts = self._gpu(index)
            if facts is not None:
                found.append(facts)
        if found and all(facts.lost for facts in found):
            self.close()
        return found

    def close(self) -> None:
        """See GpuReader."""
        if self._nvml is not None and self._begun:
            self._begun = False
            self._told(self._nvml.nvmlShutdown)

    def _gpu(self, index: int) -> GpuFacts | None:
        """None for a GPU that does not even tell its identity: it counts as absent."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError:
            return None
        try:
            return self._facts(handle, uuid, index)
        except nvml.NVMLError as error:
            return GpuFacts(uuid=uuid, vendor=GpuVendor.NVIDIA, index=index, lost=True, problem=str(error))

    def _facts(self, handle: Any, uuid: str, index: int) -> GpuFacts:
        nvml, told = self._nvml, self._told
        memory = told(nvml.nvmlDeviceGetMemoryInfo, handle)
        rates = told(nvml.nvmlDeviceGetUtilizationRates, handle)
        power_mw = told(nvml.nvmlDeviceGetPowerUsage, handle)
        limit_mw = told(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        energy_mj = told(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        return GpuFacts(
            uuid=uuid,
            vendor=GpuVendor.NVIDIA,
            index=index,
            name=str(told(nvml.nvmlDeviceGetName, handle) or ""),
            driver=self._driver,
            memory_total_bytes=None if memory is None else int(memory.total),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_free_bytes=None if memory is None else int(memory.free),
            busy_share=None if rates is None else rates.gpu / 100,
            temperature_c=told(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            power_w=None if power_mw is None else power_mw / 1000,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            energy_j=None if energy_mj is None else energy_mj / 1000,
            clock_mhz=told(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            throttle=self._throttle(handle),
            processes=self._processes(handle, uuid),
            problem="" if memory is not None else "the driver does not tell its memory",
        )

    def _throttle(self, handle: Any) -> frozenset[str] | None:
        nvml = self._nvml
        ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        bits = None if ask is None else self._told(ask, handle)
        if bits is None:  # drivers before 535 know the older name only
            bits = self._told(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        if bits is None:
            return None
        return frozenset(word for bit, word in THROTTLE_WORDS.items() if bits & bit)

    def _processes(self, handle: Any, uuid: str) -> tuple[GpuProcess, ...] | None:
        nvml = self._nvml
        computing = self._told(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        drawing = self._told(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
        if computing is None or drawing is None:
            return None
        shares = self._shares(handle, uuid)
        memory: dict[int, int | None] = {}
        for each in (*computing, *drawing):
            held = getattr(each, "usedGpuMemory", None)
            memory[each.pid] = held if held is not None else memory.get(each.pid)
        if memory and not any(self._pid_seen(pid) for pid in memory):
            return None
        computes = {each.pid for each in computing}
        draws = {each.pid for each in drawing}
        return tuple(
            GpuProcess(
                pid=pid,
                computes=pid in computes,
                draws=pid in draws,
                memory_bytes=held,
                busy_share=None if shares is None else shares.get(pid, 0.0),
            )
            for pid, held in sorted(memory.items())
        )

    def _shares(self, handle: Any, uuid: str) -> dict[int, float] | None:
        """Each process's part of the GPU's time since the last look; a silent one had none."""
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._stamps.get(uuid, 0))
        except nvml.NVMLError as error:
            if _is(nvml, error, LOST):
                raise
            return {} if _is(nvml, error, ("NOT_FOUND",)) else None
        newest: dict[int, Any] = {}
        for sample in samples:
            if sample.pid not in newest or sample.timeStamp > newest[sample.pid].timeStamp:
                newest[sample.pid] = sample
        if newest:
            self._stamps[uuid] = max(sample.timeStamp for sample in newest.values())
        return {pid: min(sample.smUtil, 100) / 100 for pid, sample in newest.items()}

    def _told(self, ask: Callable[..., T], *arguments: Any) -> T | None:
        """What a call tells; None where it does not. Raises NVMLError for a GPU that is lost."""
        nvml = self._nvml
        try:
            return ask(*arguments)
        except nvml.NVMLError as error:
            if arguments and _is(nvml, error, LOST):
                raise
            return None


def _is(nvml: Any, error: Any, names: tuple[str, ...]) -> bool:
    return any(error.value == getattr(nvml, f"NVML_ERROR_{name}", None) for name in names)
