"""A node's GPUs as its agent uses them: where the engine goes, what that needs, how fast it is, what is lost.

The decisions are in policy/gpu_fit.py and policy/gpu_use.py; here they meet the driver and the engine.
"""

import logging
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from panal.core.clock import Clock
from panal.core.errors import EngineFailed
from panal.core.gpus import GpuFacts, GpuVendor
from panal.node.calibration import Calibration, CalibrationFile
from panal.node.engines.engine import Delta, Engine, EngineCall, EngineFacts, Json, LoadPostponed
from panal.node.hardware.gpu_watch import PolledGpus
from panal.node.measuring import calibrate
from panal.node.speeds import MeasuredSpeeds
from panal.policy.gpu_fit import RESERVE_BYTES, choose, first_estimate_bytes, raised_estimate_bytes
from panal.protocol.messages import GpuReport
from panal.telemetry.logs import fields

LOST = "GPU lost"
NO_ROOM = "no GPU has enough free memory"
OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|cudaMalloc failed|failed to allocate|bad_alloc|hipErrorOutOfMemory",
    re.IGNORECASE,
)
"""How engines and drivers say that the memory ran out."""


@runtime_checkable
class Placeable(Protocol):
    """An engine that can be told which GPU is its own."""

    def use_gpu(self, uuid: str, vendor: str) -> None:
        """From the next start on; ``uuid`` empty: none."""
        ...


class NodeGpus:
    """``uses_gpu`` False: the engine works on the processor whatever GPUs there are.

    ``cpu_when_lost``: rather on the processor, and visibly so, than not at all.
    """

    def __init__(
        self,
        watch: PolledGpus,
        calibrations: CalibrationFile,
        clock: Clock,
        *,
        uses_gpu: bool,
        cpu_when_lost: bool = False,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        self.watch = watch
        self.uses_gpu = uses_gpu
        self._calibrations = calibrations
        self._clock = clock
        self.cpu_when_lost = cpu_when_lost
        self._reserve_bytes = reserve_bytes
        self._log = logging.getLogger("panal.node.gpus")
        self.placed = ""
        """UUID of the GPU that the engine is on; empty: it works on the processor, or not at all."""
        self.record = Calibration(gpu="", model="", engine="")
        """What is known of the engine where it is now."""
        self._fell_back = False

    async def run(self) -> None:
        """Watch the GPUs until cancelled."""
        await self.watch.run()

    def trouble(self) -> str:
        """Why no GPU work may be done now, coarse; empty when it may."""
        return LOST if self.placed and self.placed in self.watch.answer().lost else ""

    def can_return(self) -> bool:
        """The engine went to the processor for want of a GPU, and the GPU is back."""
        reading = self.watch.fresh()
        there = reading is not None and any(not gpu.lost for gpu in reading.gpus)
        return self._fell_back and there and not self.watch.answer().lost

    def note(self) -> str:
        """What an operator should see of a node that serves all the same."""
        return f"{LOST}: the model runs on the processor" if self._fell_back else ""

    # --- loading

    async def place(self, engine: Engine) -> None:
        """Choose the card for the next load, by memory read this instant. Raises LoadPostponed."""
        self.placed, self._fell_back = "", False
        facts = engine.facts
        self.record = self._calibrations.find("", facts.twin, _engine(facts), "")
        if not self.uses_gpu:
            return
        reading = await self.watch.look()
        lost = self.watch.answer().lost
        if reading.no_driver and not lost:
            return
        usable = [gpu for gpu in reading.gpus if not gpu.lost]
        if not usable and self.cpu_when_lost:
            self._fell_back = True
            self._log.warning("the GPU is lost: the engine starts on the processor")
            self._tell(engine, None)
            return
        if reading.problem or not usable:
            raise LoadPostponed(f"{LOST}: {reading.problem or 'the driver shows none'}", LOST)
        self._on_card(engine, usable)

    def _on_card(self, engine: Engine, cards: Sequence[GpuFacts]) -> None:
        facts = engine.facts
        records = {
            gpu.uuid: self._calibrations.find(gpu.uuid, facts.twin, _engine(facts), gpu.driver)
            for gpu in cards
        }
        needed = {uuid: _needed_bytes(facts, record) for uuid, record in records.items()}
        used = self.watch.used_by_others()
        choices = [choose(needed[gpu.uuid], [gpu], self._reserve_bytes, used) for gpu in cards]
        fitting = [gpu for gpu, choice in zip(cards, choices, strict=True) if choice.uuid]
        if not fitting:
            told = "; ".join(choice.explanation() for choice in choices)
            raise LoadPostponed(f"{NO_ROOM}: {told}", NO_ROOM)
        chosen = choose(0, fitting, 0, used).uuid
        card = next(gpu for gpu in fitting if gpu.uuid == chosen)
        self.placed, self.record = card.uuid, records[card.uuid]
        self._tell(engine, card)

    def _tell(self, engine: Engine, card: GpuFacts | None) -> None:
        if isinstance(engine, Placeable):
            engine.use_gpu(card.uuid if card else "", card.vendor if card else GpuVendor.NVIDIA)

    def load_failed(self, engine: Engine, error: EngineFailed) -> None:
        """After a load that failed: one that ran out of memory needs more the next time."""
        if not self.placed or not OUT_OF_MEMORY.search(error.message):
            return
        free = next((gpu.memory_free_bytes for gpu in self.watch.gpus() if gpu.uuid == self.placed), None)
        needed = _needed_bytes(engine.facts, self.record)
        raised = raised_estimate_bytes(needed, free)
        times = self.record.out_of_memory + 1
        self._keep(msgspec.structs.replace(self.record, estimate_bytes=raised, out_of_memory=times))
        words = fields(action="estimate_raised", estimate_bytes=raised, times=times)
        self._log.warning("the memory ran out at the load", extra=words)

    async def loaded(self, engine: Engine, load_s: float) -> None:
        """After a load that went well: keep how long it took and what it holds."""
        held: int | None = 0
        if self.placed:
            reading = await self.watch.look()
            card = next((gpu for gpu in reading.gpus if gpu.uuid == self.placed), None)
            held = None if card is None else _held_bytes(card, reading.own)
        if held == 0 and self.placed:
            self._log.warning("the engine uses no GPU although there is one")
            self.placed = ""
            self.record = self._calibrations.find("", engine.facts.twin, _engine(engine.facts), "")
        self._keep(
            msgspec.structs.replace(
                self.record,
                load_s=round(load_s, 3),
                memory_bytes=held or self.record.memory_bytes,
                estimate_bytes=held or self.record.estimate_bytes,
                out_of_memory=0,
            )
        )

    async def calibrated(self, engine: Engine, speeds: MeasuredSpeeds) -> None:
        """Give ``speeds`` what was measured of this engine here; if nothing was, measure it now."""
        record = self.record
        if not record.decode_s_per_token and engine.facts.twin:
            fresh = MeasuredSpeeds()
            await calibrate(engine, fresh, self._clock, speeds.prefill_tokens_per_s)
            record = msgspec.structs.replace(
                self.record,
                prefill_tokens_per_s=round(fresh.prefill_tokens_per_s, 3),
                decode_s_per_token=round(fresh.decode_s_per_token, 6),
                measured_utc_s=round(self._clock.utc_seconds(), 3),
            )
            if fresh.decode_s_per_token:
                self._keep(record)
        if record.decode_s_per_token:
            speeds.prefill_tokens_per_s = record.prefill_tokens_per_s or speeds.prefill_tokens_per_s
            speeds.decode_s_per_token = record.decode_s_per_token

    def _keep(self, record: Calibration) -> None:
        self.record = record
        if record.model:
            self._calibrations.keep(record)

    # --- what travels

    def reports(self, *, changing: bool) -> list[GpuReport]:
        """For the heartbeat. ``changing`` False: what changes with use is left out, since it would tell
        when the owner is at work."""
        lost = self.watch.answer().lost
        found = []
        for gpu in self.watch.gpus():
            report = GpuReport(
                uuid=gpu.uuid,
                vendor=gpu.vendor.value,
                name=gpu.name[:100],
                driver=gpu.driver[:40],
                memory_total_bytes=gpu.memory_total_bytes,
                lost=gpu.lost or gpu.uuid in lost,
            )
            if changing and not report.lost:
                report.memory_free_bytes = gpu.memory_free_bytes
                report.busy_share = gpu.busy_share
                report.temperature_c = gpu.temperature_c
                report.power_w = gpu.power_w
                report.energy_j = gpu.energy_j
                report.throttle = None if gpu.throttle is None else sorted(gpu.throttle)
            found.append(report)
        known = {report.uuid for report in found}
        return found + [GpuReport(uuid=uuid, lost=True) for uuid in lost if uuid not in known]


class PlacedEngine:
    """An Engine that is put on a card before each start, and measured after it."""

    def __init__(self, engine: Engine, gpus: NodeGpus, clock: Clock) -> None:
        self._engine = engine
        self._gpus = gpus
        self._clock = clock

    @property
    def facts(self) -> EngineFacts:
        return self._engine.facts

    async def start(self) -> None:
        """See Engine.start; also raises LoadPostponed."""
        await self._gpus.place(self._engine)
        begun_s = self._clock.monotonic_seconds()
        try:
            await self._engine.start()
        except EngineFailed as error:
            self._gpus.load_failed(self._engine, error)
            raise
        await self._gpus.loaded(self._engine, self._clock.monotonic_seconds() - begun_s)

    async def stop(self, grace_s: float) -> None:
        """See Engine.stop."""
        await self._engine.stop(grace_s)

    def kill(self) -> None:
        """See Engine.kill."""
        self._engine.kill()

    async def ended(self) -> str:
        """See Engine.ended."""
        return await self._engine.ended()

    async def healthy(self) -> bool:
        """See Engine.healthy."""
        return await self._engine.healthy()

    def generate(self, call: EngineCall) -> AsyncGenerator[Delta, None]:
        """See Engine.generate."""
        return self._engine.generate(call)

    async def embed(self, call: EngineCall) -> Json:
        """See Engine.embed."""
        return await self._engine.embed(call)

    def process_ids(self) -> frozenset[int]:
        """See Engine.process_ids."""
        return self._engine.process_ids()


def _needed_bytes(facts: EngineFacts, record: Calibration) -> int:
    return record.estimate_bytes or first_estimate_bytes(facts.weights_bytes)


def _engine(facts: EngineFacts) -> str:
    return f"{facts.kind} {facts.version}".strip()


def _held_bytes(card: GpuFacts, own: frozenset[int]) -> int | None:
    """What our engine holds on a card; None where the driver does not tell."""
    if card.processes is None:
        return None
    held = [each.memory_bytes for each in card.processes if each.pid in own]
    return None if any(size is None for size in held) else sum(size for size in held if size is not None)
