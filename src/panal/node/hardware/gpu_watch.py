"""Looks at the GPUs again and again, and answers at once what the last looks mean."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from panal.core.clock import Clock
from panal.core.gpus import ForeignUse, GpuFacts, GpuReading
from panal.node.hardware.gpu_reading import GpuProbe
from panal.policy.gpu_use import STALE_S, GpuAnswer, Watched, answer, watch
from panal.telemetry.logs import fields

LOOK_EACH_S = 1.0
LOOK_EACH_S_WITHOUT = 30.0
"""Without a driver: a GPU may still appear."""


class GpuWatch(Protocol):
    """What the owner's side of a node asks at each of its polls. Nothing here waits for a driver."""

    def answer(self) -> GpuAnswer:
        """Foreign use, heat and losses as of now. UNKNOWN where the readings are missing or too old."""
        ...

    def let_learn(self, learn: bool) -> None:
        """Nobody is at the machine: what the GPUs hold now is the desktop's own. Off at the start."""
        ...


class PolledGpus:
    """A GpuWatch. ``own`` gives our engine's processes, ``changed`` is called when the answer is another;
    both are set by the agent before ``run``."""

    def __init__(self, probe: GpuProbe, clock: Clock, *, each_s: float = LOOK_EACH_S) -> None:
        self._probe = probe
        self._clock = clock
        self.own: Callable[[], frozenset[int]] = frozenset
        self.changed: Callable[[], None] = lambda: None
        self._each_s = each_s
        self._watched = Watched()
        self._reading: GpuReading | None = None
        self._good: GpuReading | None = None
        self._learns = False
        self._ours: frozenset[int] = frozenset()
        """Our engine's processes, until a reading shows nothing of them any more."""
        self._log = logging.getLogger("panal.node.gpus")

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                reading = await self.look()
                none = reading.no_driver and not self._watched.cards
                await asyncio.sleep(LOOK_EACH_S_WITHOUT if none else self._each_s)
        finally:
            self._probe.close()

    async def look(self) -> GpuReading:
        """One look now; within the probe's deadline."""
        reading = await self._probe.read(self.own())
        before = self._watched
        self._watched = watch(before, reading, may_learn=self._learns)
        self._reading = reading
        if not reading.problem:
            self._good = reading
            shown = {each.pid for gpu in reading.gpus for each in gpu.processes or ()}
            self._ours = reading.own | (self._ours & shown)
        if self._watched.lost != before.lost:
            lost = " ".join(self._watched.lost)
            self._log.warning(
                "GPUs are lost: %s" if lost else "the GPUs are back%s",
                lost,
                extra=fields(action="gpus_lost" if lost else "gpus_back", problem=reading.problem or None),
            )
        now = self._watched
        if (now.lost, now.foreign, now.thermal) != (before.lost, before.foreign, before.thermal):
            self.changed()
        return reading

    def answer(self) -> GpuAnswer:
        """See GpuWatch."""
        return answer(self._watched, self._clock.monotonic_seconds())

    def let_learn(self, learn: bool) -> None:
        """See GpuWatch."""
        self._learns = learn

    def gpus(self) -> tuple[GpuFacts, ...]:
        """The GPUs as last read, the lost ones marked; their changing facts may be old."""
        return () if self._good is None else self._good.gpus

    @property
    def absent(self) -> bool:
        """No driver has ever shown a GPU here."""
        return self._reading is not None and self._reading.no_driver and not self._watched.cards

    def used_by_others(self) -> frozenset[str]:
        """UUIDs of the GPUs that somebody else uses."""
        return frozenset(card.uuid for card in self._watched.cards if card.foreign is ForeignUse.YES)

    def fresh(self) -> GpuReading | None:
        """The last reading, if the driver answered and it is not too old."""
        reading = self._reading
        if reading is None or reading.late:
            return None
        return reading if self._clock.monotonic_seconds() - reading.at_s <= STALE_S else None

    def used_bytes(self, pids: Sequence[int]) -> int | None:
        """See GpuMemory (memory.py): held by these processes, and by ended ones of ours that still show.

        All that is used counts where the driver does not tell programs apart.

        None: there is no reading since the engine ended, or the driver hangs. A lost GPU holds nothing.
        """
        if self.absent:
            return 0
        reading = self.fresh()
        if reading is None or (reading.own and not pids):
            return None
        ours = frozenset(pids) | self._ours
        held = [_held(gpu, ours) for gpu in reading.gpus if not gpu.lost]
        return None if any(size is None for size in held) else sum(size for size in held if size is not None)


def _held(gpu: GpuFacts, pids: frozenset[int]) -> int | None:
    if gpu.processes is None:
        return gpu.memory_used_bytes
    held = [each.memory_bytes for each in gpu.processes if each.pid in pids]
    if any(size is None for size in held):
        return gpu.memory_used_bytes
    return sum(size for size in held if size is not None)
