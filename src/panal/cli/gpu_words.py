"""GPUs in words, for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from panal.core.gpus import GIB


def gpu_lines(gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line each; what is not known is left out, never shown as 0."""
    return [gpu_line(each) for each in gpus]


def gpu_line(gpu: Mapping[str, Any]) -> str:
    """``gpu`` has the fields of GpuReport, unknown ones None."""
    if gpu["lost"]:
        return f"{gpu.get('name') or gpu['uuid']} is lost"
    total, free = gpu.get("memory_total_bytes"), gpu.get("memory_free_bytes")
    parts = [str(gpu.get("name") or gpu["uuid"])]
    if total is not None:
        parts.append(f"{gib(free)} of {gib(total)} free" if free is not None else gib(total))
    if gpu.get("busy_share") is not None:
        parts.append(f"{gpu['busy_share']:.0%} busy")
    if gpu.get("temperature_c") is not None:
        parts.append(f"{gpu['temperature_c']:.0f} °C")
    if gpu.get("power_w") is not None:
        parts.append(f"{gpu['power_w']:.0f} W")
    if gpu.get("throttle"):
        parts.append("slowed down: " + " ".join(sorted(gpu["throttle"])))
    return " · ".join(parts)


def gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB"
