"""Which drivers are asked on this machine, or the file that stands in for them."""

import sys
from pathlib import Path

from panal.core.clock import Clock
from panal.core.settings import NodeSettings
from panal.node.calibration import CalibrationFile
from panal.node.gpus import NodeGpus
from panal.node.hardware.gpu_amd import AmdReader
from panal.node.hardware.gpu_fake import FakeNvml
from panal.node.hardware.gpu_nvml import NvmlReader
from panal.node.hardware.gpu_reading import GpuProbe, GpuReader, with_children
from panal.node.hardware.gpu_watch import PolledGpus


def gpu_readers(fake: FakeNvml | None = None) -> list[GpuReader]:
    """The real drivers of this system, or the stand-in alone."""
    if fake is not None:
        return [NvmlReader(lambda: fake, pid_seen=lambda _pid: True)]
    readers: list[GpuReader] = [NvmlReader()]
    if sys.platform.startswith("linux"):
        readers.append(AmdReader())
    return readers


def node_gpus(
    home: Path, settings: NodeSettings, clock: Clock, *, fake_hardware: Path | None, uses_gpu: bool
) -> NodeGpus:
    """The GPUs of the node in ``home``. With ``fake_hardware`` every engine counts as one that uses them.

    Raises SettingsError for a file that describes no hardware.
    """
    fake = FakeNvml(fake_hardware, clock) if fake_hardware is not None else None
    gpus = NodeGpus(
        PolledGpus(GpuProbe(gpu_readers(fake), clock), clock),
        CalibrationFile(home / "calibration.json"),
        clock,
        uses_gpu=uses_gpu or fake is not None,
        cpu_when_lost=settings.cpu_when_gpu_lost,
        reserve_bytes=settings.gpu_reserve_bytes,
    )
    if fake is not None:
        fake.engine = lambda: {gpus.placed: with_children(gpus.watch.own())}
    return gpus
