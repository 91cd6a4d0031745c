"""AMD's GPUs from copies of the kernel's files."""

from pathlib import Path

import pytest

from panal.node.hardware.gpu_amd import AmdReader
from panal.node.hardware.gpu_reading import NoDriver

FILES = {
    "vendor": "0x1002",
    "unique_id": "5a1b2c3d4e5f6071",
    "product_name": "AMD Radeon PRO W7900",
    "mem_info_vram_total": "48301604864",
    "mem_info_vram_used": "1073741824",
    "gpu_busy_percent": "7",
    "pp_dpm_sclk": "0: 500Mhz\n1: 1855Mhz *\n2: 2495Mhz",
    "hwmon/hwmon3/temp1_input": "45000",
    "hwmon/hwmon3/temp1_crit": "100000",
    "hwmon/hwmon3/power1_average": "23000000",
    "hwmon/hwmon3/power1_cap": "241000000",
}


def write(folder: Path, files: dict[str, str], card: str = "card1") -> Path:
    device = folder / card / "device"
    for name, text in files.items():
        (device / name).parent.mkdir(parents=True, exist_ok=True)
        (device / name).write_text(text + "\n")
    return device


def test_every_fact_comes_with_its_unit(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    write(tmp_path, {"vendor": "0x8086"}, "card0")
    write(tmp_path, {"vendor": "0x1002"}, "card1-DP-1")
    (facts,) = AmdReader(tmp_path).read()
    assert (facts.uuid, facts.name) == ("AMD-5a1b2c3d4e5f6071", "AMD Radeon PRO W7900")
    assert (facts.memory_total_bytes, facts.memory_used_bytes) == (48301604864, 1073741824)
    assert facts.memory_free_bytes == 48301604864 - 1073741824
    assert (facts.busy_share, facts.temperature_c, facts.clock_mhz) == (0.07, 45.0, 1855)
    assert (facts.power_w, facts.power_limit_w) == (23.0, 241.0)
    assert facts.throttle == frozenset()
    assert facts.processes is None and facts.energy_j is None


@pytest.mark.parametrize("missing", sorted(set(FILES) - {"vendor"}))
def test_a_missing_file_is_an_unknown_fact(tmp_path: Path, missing: str) -> None:
    device = write(tmp_path, FILES)
    (device / missing).unlink()
    (facts,) = AmdReader(tmp_path).read()
    assert facts.uuid.startswith("AMD-")
    told = ("memory_total_bytes", "memory_used_bytes", "busy_share", "temperature_c", "power_w")
    unknown = [name for name in (*told, "power_limit_w", "clock_mhz") if getattr(facts, name) is None]
    assert len(unknown) == (0 if missing in ("unique_id", "product_name", "hwmon/hwmon3/temp1_crit") else 1)


def test_heat_at_the_critical_point_is_a_slowdown(tmp_path: Path) -> None:
    write(tmp_path, FILES | {"hwmon/hwmon3/temp1_input": "100000"})
    assert AmdReader(tmp_path).read()[0].throttle == {"hw_thermal"}


def test_a_machine_without_amd_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoDriver):
        AmdReader(tmp_path).read()
