"""What the owner's machine hears of the GPUs: a GpuSensor over the watch that the agent runs."""

from panal.core.clock import Clock
from panal.core.gpus import GIB, ForeignUse, GpuFacts, Thermal
from panal.node.hardware.gpu_watch import PolledGpus
from panal.policy.signs import GpuUse

FOREIGN = {ForeignUse.YES: True, ForeignUse.NO: False, ForeignUse.UNKNOWN: None}
HOT = {Thermal.HOT: True, Thermal.OK: False, Thermal.UNKNOWN: None}


class OwnerGpu:
    """A GpuSensor (senses.py)."""

    def __init__(self, watch: PolledGpus, clock: Clock) -> None:
        self._watch = watch
        self._clock = clock

    def read(self) -> GpuUse | None:
        """Answers of the watch are unknown, not old, where its last look is too long ago."""
        if self._watch.absent:
            return None
        answer = self._watch.answer()
        return GpuUse(
            now_s=self._clock.monotonic_seconds(),
            foreign=FOREIGN[answer.foreign],
            hot=HOT[answer.thermal],
            memory_free_share=_free_share(self._watch.gpus()),
        )

    def let_learn(self, learn: bool) -> None:
        self._watch.let_learn(learn)

    def limit(self, power_w_max: float | None) -> str:
        """Setting a power limit needs rights that an agent does not have."""
        return "" if power_w_max is None else "the power cannot be capped by an agent"

    def words(self) -> dict[str, str]:
        cards = enumerate(self._watch.gpus(), start=1)  # two may have one name
        return {f"GPU {number}, {gpu.name or gpu.uuid}": _words(gpu) for number, gpu in cards}

    async def run(self) -> None:
        """The agent runs the watch itself."""


def _free_share(gpus: tuple[GpuFacts, ...]) -> float | None:
    """Of the card with the least room; None where one does not tell."""
    shares = []
    for gpu in gpus:
        if gpu.lost:
            continue
        if not gpu.memory_total_bytes or gpu.memory_free_bytes is None:
            return None
        shares.append(gpu.memory_free_bytes / gpu.memory_total_bytes)
    return min(shares, default=None)


def _words(gpu: GpuFacts) -> str:
    if gpu.lost:
        return "lost"
    if gpu.memory_total_bytes is None or gpu.memory_free_bytes is None:
        return "does not tell its memory"
    return f"{gpu.memory_free_bytes / GIB:.1f} of {gpu.memory_total_bytes / GIB:.1f} GiB free"
