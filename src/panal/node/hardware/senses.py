"""Everything that OwnerWatch sees beside input: surroundings, accelerators, what the engine holds."""

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from math import inf
from typing import Protocol

from panal.core.clock import Clock
from panal.node.hardware.memory import EngineMemory
from panal.node.hardware.surroundings import Place, Surroundings
from panal.policy.desk_limits import Limits
from panal.policy.signs import GpuUse, Signs

HELD_EACH_S = 2.0


class GpuSensor(Protocol):
    """Foreign use and heat of the accelerators; NVML and the like implement it."""

    def read(self) -> GpuUse | None:
        """The newest look, with the time it was taken; None where the machine has no accelerator. The
        engine's own use is not foreign. Never blocks."""
        ...

    def let_learn(self, learn: bool) -> None:
        """Nobody is at the machine: what the accelerators hold now is the desktop's own."""
        ...

    def limit(self, power_w_max: float | None) -> str:
        """Cap the power where the system allows it, None: no cap of ours. Returns why not, or ""."""
        ...

    def words(self) -> dict[str, str]:
        """Each card's state, for the owner's eyes."""
        ...

    async def run(self) -> None:
        """Look until cancelled."""
        ...


class NoGpu:
    """A machine whose accelerators nobody looks at."""

    def read(self) -> GpuUse | None:
        return None

    def let_learn(self, learn: bool) -> None:
        """There is nothing to learn."""

    def limit(self, power_w_max: float | None) -> str:
        return "" if power_w_max is None else "there is no way to cap the power here"

    def words(self) -> dict[str, str]:
        return {}

    async def run(self) -> None:
        """There is nothing to look at."""


class Senses:
    """``limits`` gives what the operators and the owner allow together."""

    def __init__(
        self,
        place: Place,
        clock: Clock,
        limits: Callable[[], Limits],
        memory: EngineMemory,
        gpu: GpuSensor | None = None,
    ) -> None:
        self._clock = clock
        self._limits = limits
        self._memory = memory
        self.gpu: GpuSensor = gpu if gpu is not None else NoGpu()
        self.surroundings = Surroundings(place, clock, limits, self._own_pids)
        self._log = logging.getLogger("panal.node.owner")
        self._gpu_failed = False
        self._held_s = -inf
        self._over = False
        self._power_w_max: float | None = None
        self._power_word = ""

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.surroundings.run(), name="surroundings")
            group.create_task(self.gpu.run(), name="accelerators")

    def signs(self) -> Signs:
        """The surroundings now."""
        limits = self._limits()
        self._cap_power(limits)
        return self.surroundings.signs(over_limit=self._over_limit(limits), limits=limits)

    def owner_is_away(self, away: bool) -> None:
        """Told at each poll: only then what the accelerators hold is the desktop's own."""
        self.gpu.let_learn(away)

    def machine_is_back(self, back: bool) -> None:
        """Told at each poll: no answer runs here and the engine is gone."""
        self.surroundings.machine_is_back(back)

    def gpu_use(self) -> GpuUse | None:
        """The accelerators now, None where there is none. A sensor that fails sees nothing."""
        try:
            use = self.gpu.read()
        except Exception as error:  # noqa: BLE001 - a broken sensor means an owner at work, not a dead agent
            if not self._gpu_failed:
                self._log.warning("the accelerators cannot be read: %s", type(error).__name__)
            self._gpu_failed = True
            return GpuUse(self._clock.monotonic_seconds(), foreign=None)
        self._gpu_failed = False
        return use

    def words(self) -> dict[str, str]:
        """Each sensor's word, for the owner's eyes."""
        words = {**self.surroundings.words(), **self.gpu.words()}
        if self._power_word:
            words["power cap"] = self._power_word
        return words

    def _own_pids(self) -> Collection[int]:
        return {os.getpid(), *self._memory.pids()}

    def _over_limit(self, limits: Limits) -> bool:
        """Whether the engine holds more than it may; what cannot be measured is over a limit that is set."""
        if limits.memory_bytes_max is None and limits.gpu_memory_bytes_max is None:
            return False
        now_s = self._clock.monotonic_seconds()
        if now_s - self._held_s >= HELD_EACH_S:
            self._held_s = now_s
            main = _over(self._memory.main_bytes, limits.memory_bytes_max)
            self._over = main or _over(self._memory.accelerator_bytes, limits.gpu_memory_bytes_max)
        return self._over

    def _cap_power(self, limits: Limits) -> None:
        wanted = limits.power_w_max
        if wanted != self._power_w_max:
            self._power_w_max = wanted
            complaint = self.gpu.limit(wanted)
            self._power_word = complaint or ("" if wanted is None else f"at most {wanted:g} W")


def _over(held_bytes: Callable[[], int | None], limit_bytes: int | None) -> bool:
    if limit_bytes is None:
        return False
    held = held_bytes()
    return held is None or held > limit_bytes
