"""``make gpu-check``: what this machine's GPUs tell, whether it can be believed, and one yield.

Takes a minute, five at the most. Prints a table, and with ``--json FILE`` the same as JSON. Without a GPU it
says so and checks nothing; ``--fake-hardware FILE`` runs it whole on the stand-in.
"""

import argparse
import asyncio
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from panal.cli.gpu_words import gib
from panal.core.clock import Clock, SystemClock
from panal.core.errors import EngineFailed, PanalError
from panal.core.gpus import GIB, GpuFacts
from panal.node.engines.process import EngineProcess, Program
from panal.node.hardware.gpu_build import gpu_readers
from panal.node.hardware.gpu_fake import FakeNvml
from panal.node.hardware.gpu_reading import GpuProbe, with_children
from panal.node.hardware.memory import SLACK_BYTES, is_back

CHECK_S_MAX = 300.0
LOOKS = 20
ENERGY_S = 5.0
HELD_BYTES = GIB // 2
BACK_S_MAX = 10.0
"""The promise: the GPU's memory is back within this time."""

NOT_TOLD = (
    "memory_used_bytes",
    "busy_share",
    "temperature_c",
    "power_w",
    "energy_j",
    "clock_mhz",
    "throttle",
    "processes",
)
NO_GPU = "There is no GPU on this machine that a driver would tell of: nothing was checked."


@dataclass
class Row:
    """One finding. ``good`` None: it could not be checked."""

    gpu: str
    what: str
    good: bool | None
    told: str
    values: dict[str, Any] = field(default_factory=dict)


class GpuCheck:
    """One run over all GPUs."""

    def __init__(self, clock: Clock, fake: FakeNvml | None, say: Callable[[str], None]) -> None:
        self._clock = clock
        self._fake = fake
        self._say = say
        self._probe = GpuProbe(gpu_readers(fake), clock, deadline_s=10.0)

    async def run(self) -> list[Row]:
        """All findings; empty when there is no GPU. Raises EngineFailed when the drivers fail as a whole."""
        try:
            first = await self._probe.read()
            if first.problem:
                raise EngineFailed(f"The GPUs cannot be read: {first.problem}")
            if not first.gpus:
                return []
            rows = [await self._look_times(), *(_facts(gpu) for gpu in first.gpus)]
            rows += await self._energy(first.gpus)
            for gpu in first.gpus:
                rows.append(await self._yield(gpu))
            return rows
        finally:
            self._probe.close()

    async def _look_times(self) -> Row:
        self._say(f"asking the drivers {LOOKS} times ...")
        times_s = []
        for _ in range(LOOKS):
            begun_s = self._clock.monotonic_seconds()
            await self._probe.read()
            times_s.append(self._clock.monotonic_seconds() - begun_s)
        worst_s = max(times_s)
        told = f"one look takes {sorted(times_s)[LOOKS // 2] * 1000:.1f} ms, {worst_s * 1000:.1f} ms at most"
        return Row("all", "one look", worst_s < 1.0, told, {"worst_s": round(worst_s, 4)})

    async def _energy(self, gpus: tuple[GpuFacts, ...]) -> list[Row]:
        """Whether the counter moves, and by about as much as the power says."""
        self._say(f"watching the energy counters for {ENERGY_S:g} s ...")
        powers: dict[str, list[float]] = {gpu.uuid: [] for gpu in gpus}
        begun = {gpu.uuid: gpu for gpu in (await self._probe.read()).gpus}
        begun_s = self._clock.monotonic_seconds()
        last = begun
        while self._clock.monotonic_seconds() - begun_s < ENERGY_S:
            await asyncio.sleep(0.25)
            last = {gpu.uuid: gpu for gpu in (await self._probe.read()).gpus}
            for gpu in last.values():
                if gpu.power_w is not None:
                    powers.setdefault(gpu.uuid, []).append(gpu.power_w)
        passed_s = self._clock.monotonic_seconds() - begun_s
        return [_energy(begun.get(gpu.uuid), last.get(gpu.uuid), powers[gpu.uuid], passed_s) for gpu in gpus]

    async def _yield(self, gpu: GpuFacts) -> Row:
        """Hold memory as an engine would, then take it back as for an owner, and read that it is back."""
        self._say(f"a yield on {gpu.name} ...")
        with tempfile.TemporaryDirectory(prefix="panal-gpu-check-") as folder:
            words = ["--bytes", str(HELD_BYTES), *(["--main-memory"] if self._fake is not None else [])]
            command = (sys.executable, "-m", "panal.cli.gpu_hold", *words)
            environment = {"CUDA_VISIBLE_DEVICES": gpu.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
            process = EngineProcess(Program(command, Path(folder) / "hold.log", 60.0, environment), "none")
            if self._fake is not None:
                self._fake.engine = lambda: {gpu.uuid: with_children(_pids(process))}
            baseline = await self._used(gpu.uuid)
            try:
                await process.start()
                held = await self._held(gpu.uuid, _pids(process))
                full = await self._used(gpu.uuid)
                begun_s = self._clock.monotonic_seconds()
                await process.stop()
            except EngineFailed as error:
                return Row(gpu.uuid, "yield", None, f"no memory could be held: {error.message}")
            finally:
                await process.stop(0.0)
            gone_s = self._clock.monotonic_seconds() - begun_s
            back_s = await self._back(gpu.uuid, baseline, begun_s)
        return _yielded(gpu.uuid, baseline, full, held, gone_s, back_s)

    async def _used(self, uuid: str) -> int | None:
        return next(
            (gpu.memory_used_bytes for gpu in (await self._probe.read()).gpus if gpu.uuid == uuid), None
        )

    async def _held(self, uuid: str, pids: frozenset[int]) -> int | None:
        """What the driver says that our program holds; None where it does not tell programs apart."""
        reading = await self._probe.read(pids)
        gpu = next((each for each in reading.gpus if each.uuid == uuid), None)
        if gpu is None or gpu.processes is None:
            return None
        ours = [each.memory_bytes for each in gpu.processes if each.pid in reading.own]
        known = [size for size in ours if size is not None]
        return sum(known) if known else None

    async def _back(self, uuid: str, baseline: int | None, begun_s: float) -> float | None:
        """Seconds until the memory was read to be back; None if it was not within BACK_S_MAX."""
        if baseline is None:
            return None
        while (passed_s := self._clock.monotonic_seconds() - begun_s) <= BACK_S_MAX:
            if is_back(await self._used(uuid), baseline):
                return passed_s
            await asyncio.sleep(0.05)
        return None


def _facts(gpu: GpuFacts) -> Row:
    missing = [name for name in NOT_TOLD if getattr(gpu, name) is None]
    total = "?" if gpu.memory_total_bytes is None else gib(gpu.memory_total_bytes)
    slow = "not told" if gpu.throttle is None else " ".join(sorted(gpu.throttle)) or "nothing"
    told = f"{gpu.name}, {total}, driver {gpu.driver}, slowed down by: {slow}"
    if missing:
        told += f"; not told: {', '.join(missing)}"
    facts = asdict(gpu) | {"throttle": None if gpu.throttle is None else sorted(gpu.throttle)}
    facts["processes"] = None if gpu.processes is None else len(gpu.processes)
    return Row(gpu.uuid, "facts", not (gpu.lost or gpu.problem), told, facts)


def _energy(before: GpuFacts | None, after: GpuFacts | None, powers: list[float], passed_s: float) -> Row:
    uuid = (before or after).uuid if before or after else "?"  # type: ignore[union-attr]
    if before is None or after is None or before.energy_j is None or after.energy_j is None:
        return Row(uuid, "energy counter", None, "not told")
    used_j = after.energy_j - before.energy_j
    told = f"{used_j:.1f} J in {passed_s:.1f} s"
    values = {"energy_j": round(used_j, 3), "seconds": round(passed_s, 3)}
    if not powers:
        return Row(uuid, "energy counter", used_j > 0, told, values)
    expected_j = sum(powers) / len(powers) * passed_s
    ratio = used_j / expected_j if expected_j else 0.0
    told += f", the power says {expected_j:.1f} J"
    return Row(uuid, "energy counter", 0.5 < ratio < 2.0, told, values | {"by_power_j": round(expected_j, 3)})


def _yielded(
    uuid: str, baseline: int | None, full: int | None, held: int | None, gone_s: float, back_s: float | None
) -> Row:
    taken = None if baseline is None or full is None else full - baseline
    values = {
        "taken_bytes": taken,
        "held_bytes": held,
        "engine_gone_s": round(gone_s, 3),
        "memory_back_s": back_s,
    }
    if taken is None:
        return Row(uuid, "yield", None, "the memory in use is not told", values)
    if taken < HELD_BYTES - SLACK_BYTES:
        return Row(uuid, "yield", False, f"{gib(HELD_BYTES)} were taken and only {gib(taken)} show", values)
    by_process = "not told by program" if held is None else f"{gib(held)} by program"
    if back_s is None:
        return Row(uuid, "yield", False, f"the memory was not back after {BACK_S_MAX:g} s", values)
    told = f"{gib(taken)} taken ({by_process}); gone after {gone_s:.2f} s, memory back after {back_s:.2f} s"
    return Row(uuid, "yield", held is None or held >= HELD_BYTES - SLACK_BYTES, told, values)


def _pids(process: EngineProcess) -> frozenset[int]:
    return frozenset() if process.process_id is None else frozenset({process.process_id})


def main(arguments: list[str]) -> int:
    """The exit status: 0 unless something that was checked is wrong."""
    parser = argparse.ArgumentParser(prog="gpu-check", description="Check this machine's GPUs.")
    parser.add_argument(
        "--fake-hardware", type=Path, default=None, help="file that describes GPUs to pretend"
    )
    parser.add_argument("--json", type=Path, default=None, help="file to write the findings to")
    given = parser.parse_args(arguments)
    clock = SystemClock()
    try:
        fake = FakeNvml(given.fake_hardware, clock) if given.fake_hardware is not None else None
        rows = asyncio.run(_bounded(GpuCheck(clock, fake, lambda words: print(words, file=sys.stderr))))
    except (PanalError, TimeoutError) as error:
        print(f"gpu-check: {error or 'it took too long'}", file=sys.stderr)
        return 1
    found = {"machine": platform.platform(), "fake": fake is not None, "checked": bool(rows),
             "rows": [asdict(row) for row in rows]}  # fmt: skip
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if not rows:
        print(NO_GPU)
        return 0
    for row in rows:
        mark = {True: "good", False: "BAD", None: "-"}[row.good]
        print(f"{mark:<5} {row.gpu[:12]:<12}  {row.what:<15} {row.told}")
    if fake is not None:
        print("These GPUs are pretended: this shows that the check works, and nothing of real hardware.")
    return 1 if any(row.good is False for row in rows) else 0


async def _bounded(check: GpuCheck) -> list[Row]:
    async with asyncio.timeout(CHECK_S_MAX):
        return await check.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
