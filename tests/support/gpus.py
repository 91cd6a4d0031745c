"""GPUs for tests: facts in one line, files for the stand-in of NVML, a clock that is set by hand."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from panal.core.gpus import GIB, MIB, GpuFacts, GpuProcess, GpuReading, GpuVendor

CARD = "GPU-11111111-0000-4000-8000-000000000001"
OTHER = "GPU-22222222-0000-4000-8000-000000000002"


@dataclass
class HandClock:
    """A Clock whose hands are moved by the test."""

    now_s: float = 100.0

    def monotonic_seconds(self) -> float:
        return self.now_s

    def utc_seconds(self) -> float:
        return 1_796_000_000.0 + self.now_s


def gpu(
    uuid: str = CARD,
    *,
    total_gib: float = 24.0,
    used_gib: float | None = 0.5,
    processes: tuple[GpuProcess, ...] | None = (),
    **more: Any,
) -> GpuFacts:
    """A GPU that tells everything, changed by the arguments."""
    used = None if used_gib is None else int(used_gib * GIB)
    facts: dict[str, Any] = {
        "uuid": uuid,
        "vendor": GpuVendor.NVIDIA,
        "index": 0,
        "name": "NVIDIA Test",
        "driver": "580",
        "memory_total_bytes": int(total_gib * GIB),
        "memory_used_bytes": used,
        "memory_free_bytes": None if used is None else int(total_gib * GIB) - used,
        "busy_share": 0.0,
        "throttle": frozenset(),
        "processes": processes,
    }
    return GpuFacts(**(facts | more))


def reading(*gpus: GpuFacts, at_s: float = 0.0, own: frozenset[int] = frozenset(), **more: Any) -> GpuReading:
    return GpuReading(at_s=at_s, gpus=gpus, own=own, **more)


@dataclass
class HardwareFile:
    """A file for the stand-in; every ``write`` is a change that is seen at the next call."""

    path: Path
    cards: list[dict[str, Any]] = field(default_factory=list)

    def write(self, *events: dict[str, Any]) -> "HardwareFile":
        """The cards as they are, and these events."""
        lines = ['driver = "fake 580"']
        for card in self.cards:
            lines.append("[[gpu]]")
            lines += [f"{name} = {_toml(value)}" for name, value in card.items() if name != "process"]
            for process in card.get("process", ()):
                lines.append("[[gpu.process]]")
                lines += [f"{name} = {_toml(value)}" for name, value in process.items()]
        for event in events:
            lines.append("[[event]]")
            lines += [f"{name} = {_toml(value)}" for name, value in ({"at_s": 0} | event).items()]
        draft = self.path.with_suffix(".draft")
        # The size differs with each writing, so that two within one tick of the file's time are told apart.
        self.writes = getattr(self, "writes", 0) + 1
        draft.write_text("\n".join(lines) + "\n" + "#" * self.writes + "\n")
        draft.replace(self.path)
        return self


def hardware_file(folder: Path, *cards: dict[str, Any]) -> HardwareFile:
    """Written, with one card of 24 GiB where none is given."""
    plain = {"uuid": CARD, "name": "NVIDIA Test", "memory_total_mib": 24 * GIB // MIB}
    return HardwareFile(folder / "hardware.toml", list(cards) or [plain]).write()


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)
