"""AMD's GPUs from the kernel's files (amdgpu). Written from the kernel's documentation, tried on copies
of such files only (docs/support.md). Which process holds what is not told here."""

from collections.abc import Sequence
from pathlib import Path

from panal.core.gpus import GpuFacts, GpuVendor
from panal.node.hardware.gpu_reading import NoDriver

SYSFS = Path("/sys/class/drm")
AMD_VENDOR = "0x1002"


class AmdReader:
    """A GpuReader over ``folder``, the kernel's folder of graphics cards."""

    def __init__(self, folder: Path = SYSFS) -> None:
        self._folder = folder

    def read(self) -> Sequence[GpuFacts]:
        """See GpuReader."""
        cards = [
            path / "device"
            for path in sorted(self._folder.glob("card[0-9]*"))
            if path.name.removeprefix("card").isdigit() and _text(path / "device" / "vendor") == AMD_VENDOR
        ]
        if not cards:
            raise NoDriver("there is no AMD GPU")
        return [_facts(card, index) for index, card in enumerate(cards)]

    def close(self) -> None:
        """Nothing is held."""


def _facts(device: Path, index: int) -> GpuFacts:
    address = device.resolve().name
    sensors = next(iter(sorted((device / "hwmon").glob("hwmon*"))), device / "hwmon")
    total, used = _number(device / "mem_info_vram_total"), _number(device / "mem_info_vram_used")
    busy, heat = _number(device / "gpu_busy_percent"), _number(sensors / "temp1_input")
    critical = _number(sensors / "temp1_crit")
    power = _number(sensors / "power1_average") or _number(sensors / "power1_input")
    limit = _number(sensors / "power1_cap")
    throttle = None
    if heat is not None and critical is not None:
        throttle = frozenset({"hw_thermal"}) if heat >= critical else frozenset[str]()
    return GpuFacts(
        uuid=f"AMD-{_text(device / 'unique_id') or address}",
        vendor=GpuVendor.AMD,
        index=index,
        name=_text(device / "product_name") or f"AMD GPU at {address}",
        driver=_text(device / "driver" / "module" / "version") or "amdgpu",
        memory_total_bytes=total,
        memory_used_bytes=used,
        memory_free_bytes=None if total is None or used is None else max(0, total - used),
        busy_share=None if busy is None else busy / 100,
        temperature_c=None if heat is None else heat / 1000,
        power_w=None if power is None else power / 1e6,
        power_limit_w=None if limit is None else limit / 1e6,
        clock_mhz=_clock_mhz(device / "pp_dpm_sclk"),
        throttle=throttle,
        problem="" if total is not None and used is not None else "the driver does not tell its memory",
    )


def _clock_mhz(file: Path) -> int | None:
    """The line with the star is the clock now, such as ``1: 2100Mhz *``."""
    for line in _text(file).splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == "*" and words[1].lower().endswith("mhz"):
            return int(words[1][:-3]) if words[1][:-3].isdigit() else None
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(file: Path) -> int | None:
    words = _text(file)
    return int(words) if words.isdigit() else None
