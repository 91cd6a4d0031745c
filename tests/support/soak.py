"""Many requests of every kind against one installation, and whether everything is back afterwards."""

import contextlib
import http.client
import json
import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil

from tests.support.asking import say, wire
from tests.support.installation import processes_naming, until
from tests.support.served import Served

KINDS = ("whole", "streamed", "gone early", "reset", "bad JSON", "wrong key", "unknown model")
WARM_UP = 1000
"""Requests before the first look: allocators, caches and code that was not run yet come to rest."""

GROWTH_BYTES_MAX = 12 * 1024 * 1024
"""Memory that a program may have more afterwards: what its allocator keeps, however many requests came."""

POOLED_MAX = 4
"""Connections to the database, each with a thread and a descriptor, that a busy moment may have opened."""


@dataclass(frozen=True)
class State:
    """What a program holds."""

    memory_bytes: int
    descriptors: int
    threads: int
    tasks: int | None = None
    """Of the event loop, where the program tells."""
    connections: int | None = None
    in_flight: int | None = None
    queued: int | None = None
    streams: int | None = None


GAUGES = {
    "tasks": "panal_tasks",
    "connections": "panal_connections",
    "in_flight": "panal_requests_in_flight",
    "queued": "panal_requests_queued",
    "streams": "panal_streams",
}
"""Figures that a gateway tells of itself, by their metric."""


def state_of(process: psutil.Process, **gauges: int) -> State:
    with process.oneshot():
        return State(
            memory_bytes=process.memory_info().rss,
            descriptors=process.num_fds(),
            threads=process.num_threads(),
            **gauges,
        )


class Soak:
    """Asks from a few threads, each with a connection that it keeps."""

    def __init__(self, served: Served, seed: int = 1) -> None:
        self._served = served
        self._seed = seed
        named = processes_naming(str(served.installation.home))
        self._gateway = next(each for each in named if "gateway" in each.cmdline())
        self._agent = next(each for each in named if "agent" in each.cmdline())
        self.wrong: list[str] = []
        self.seconds = 0.0

    def run(self, count: int, threads: int = 8) -> dict[str, tuple[State, State]]:
        """Ask ``count`` times; what gateway and agent held before and what they hold afterwards."""
        self._ask_all(WARM_UP, threads, self._seed)
        before = self._states()
        begun_s = time.monotonic()
        self._ask_all(count, threads, self._seed + 1)
        self.seconds = time.monotonic() - begun_s
        after = self._states()
        return {name: (before[name], after[name]) for name in before}

    def _states(self) -> dict[str, State]:
        """Once nothing runs any more and the clients' connections are gone."""
        self._served.until_idle(30.0)
        until(lambda: self._served.gauge("panal_connections") <= 1.0, 30.0, "all connections are closed")
        until(self._settled, 30.0, "the number of tasks is constant")
        gauges = {name: int(self._served.gauge(metric)) for name, metric in GAUGES.items()}
        return {
            "gateway": state_of(self._gateway, **gauges),
            "agent": state_of(self._agent),
        }

    def _settled(self) -> bool:
        seen = []
        for _ in range(5):
            seen.append((self._served.gauge("panal_tasks"), self._gateway.num_fds(), self._agent.num_fds()))
            time.sleep(0.3)
        return len(set(seen)) == 1

    def _ask_all(self, count: int, threads: int, seed: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            shares = [count // threads + (number < count % threads) for number in range(threads)]
            asked = [
                pool.submit(self._ask_some, share, seed * 1000 + number)
                for number, share in enumerate(shares)
            ]
            for done in asked:
                done.result()

    def _ask_some(self, count: int, seed: int) -> None:
        chance = random.Random(seed)
        connection = self._connection()
        for _ in range(count):
            kind = chance.choice(KINDS)
            try:
                connection = self._ask(kind, connection)
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(f"{kind}: {type(error).__name__} {error}")
                connection.close()
                connection = self._connection()
        connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._served.installation.http_port, timeout=60.0)

    def _ask(self, kind: str, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        wanted = {"bad JSON": 400, "wrong key": 401, "unknown model": 404}.get(kind, 200)
        body = wire(say("count 20"))
        if kind in ("streamed", "gone early", "reset"):
            body["stream"] = True
        if kind in ("gone early", "reset"):
            body = wire(say("count 200", delay_token_s=0.005), stream=True)
        if kind == "unknown model":
            body["model"] = "nobody"
        content = b'{"model":' if kind == "bad JSON" else json.dumps(body).encode()
        key = "sk-panal-wrong" if kind == "wrong key" else self._served.installation.key
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", content, headers)
        answer = connection.getresponse()
        if answer.status != wanted:
            self.wrong.append(f"{kind}: {answer.status} {answer.read()[:200]!r}")
            return connection
        if kind in ("gone early", "reset"):
            answer.read(100)
            self._leave(connection, answer, reset=kind == "reset")
            return self._connection()
        data = answer.read()
        if kind == "streamed" and b"[DONE]" not in data:
            self.wrong.append(f"{kind}: cut")
        return connection

    def _leave(
        self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, *, reset: bool
    ) -> None:
        raw = connection.sock
        if raw is not None:
            if reset:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                with contextlib.suppress(OSError):
                    raw.shutdown(socket.SHUT_RDWR)
        answer.close()
        connection.close()


def table(states: dict[str, tuple[State, State]]) -> str:
    """Before and after, a line for each figure."""
    lines = [f"{'program':8} {'figure':14} {'before':>10} {'after':>10}"]
    for name, (before, after) in states.items():
        for figure in ("memory_bytes", "descriptors", "threads", *GAUGES):
            first, last = getattr(before, figure), getattr(after, figure)
            if first is not None:
                lines.append(f"{name:8} {figure:14} {first:>10} {last:>10}")
    return "\n".join(lines)


def leaks(states: dict[str, tuple[State, State]]) -> list[str]:
    """What is not back where it was, within the stated tolerances."""
    found = []
    for name, (before, after) in states.items():
        if after.memory_bytes - before.memory_bytes > GROWTH_BYTES_MAX:
            grown = (after.memory_bytes - before.memory_bytes) / 1024 / 1024
            found.append(f"{name}: memory grew by {grown:.1f} MiB")
        for figure in ("descriptors", "threads", *GAUGES):
            first, last = getattr(before, figure), getattr(after, figure)
            spare = POOLED_MAX if figure in ("descriptors", "threads") else 0
            if first is not None and last > first + spare:
                found.append(f"{name}: {figure} {first} -> {last}")
    return found
