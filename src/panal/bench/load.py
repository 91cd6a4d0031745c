"""A cheap load generator: plain sockets in the event loop, no task and no timer for each request.

Closed loop: so many connections, each asks again when its answer is complete. Open loop: so many
requests a second with Poisson arrivals, whatever the answers do. Delays are computed from the stamps
that bench engines put into tokens (see stamps.py); the engine's own pace is taken out of them.
"""

import asyncio
import random
import re
import ssl
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import cast

import msgspec

from panal.bench.stamps import ASKED, PACE_FIELD, SENT, now_s

LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
WORDS = "the quick brown fox jumps over the lazy dog and runs away from here "
FINISH_S_MAX = 15.0
CONNECT_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible endpoint on this machine."""

    host: str
    port: int
    model: str
    key: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """What every request asks for. ``pace_ms`` 0: as fast as the engine can."""

    tokens: int
    stream: bool = False
    pace_ms: float = 0.0
    prompt_bytes: int = 256

    def request(self, target: Target) -> bytes:
        """The whole HTTP request."""
        prompt = (WORDS * (self.prompt_bytes // len(WORDS) + 1))[: self.prompt_bytes]
        fields = {
            "model": target.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self.tokens,
            PACE_FIELD: self.pace_ms,
        }
        if self.stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        body = msgspec.json.encode(fields)
        lines = [
            "POST /v1/chat/completions HTTP/1.1",
            f"Host: {target.host}:{target.port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        if target.key:
            lines.append(f"Authorization: Bearer {target.key}")
        return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(slots=True)
class Tally:
    """What came back. Lists are in seconds, of answers that were complete while recording.

    ``events``: ``data:`` lines of streams. ``first_s``, ``last_s``: until the first token and the last
    byte, without the time that the engine itself took. ``token_s``: from the engine to here.
    """

    requests: int = 0
    events: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    whole_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    last_s: list[float] = field(default_factory=list)


class Load:
    """Requests of one kind to one target. ``recording`` decides whether delays are kept."""

    def __init__(self, target: Target, ask: Ask) -> None:
        self._target = target
        self.ask = ask
        self.request = ask.request(target)
        self.tally = Tally()
        self.recording = False
        self.running = False
        self.delays = True
        self._open: list[_Connection] = []
        self._idle: deque[_Connection] = deque()
        self._rate = 0.0
        self._draw = random.Random(1)  # noqa: S311 - arrivals, the same in every run
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def closed(self, connections: int, ramp_s: float = 0.0) -> None:
        """Open the connections and begin, spread over ``ramp_s``."""
        self.running = True
        for _ in range(connections):
            await self._connect()
        loop = asyncio.get_running_loop()
        for place, connection in enumerate(self._open):
            loop.call_later(ramp_s * place / connections, connection.ask)
        await asyncio.sleep(ramp_s)

    async def poisson(self, rate: float, connections: int) -> None:
        """Begin with ``rate`` requests a second over at most so many connections."""
        self.running = True
        self._rate = rate
        for _ in range(connections):
            self._idle.append(await self._connect())
        self._next_s = now_s()
        self._arrive()

    async def stop(self) -> None:
        """Ask nothing more, let what runs come to its end, close."""
        self.running = self.recording = False
        if self._timer is not None:
            self._timer.cancel()
        end_s = now_s() + FINISH_S_MAX
        while any(connection.busy for connection in self._open) and now_s() < end_s:
            await asyncio.sleep(0.02)
        for connection in self._open:
            if connection.busy:
                self.tally.errors["unanswered"] += 1
            connection.close()

    def finished(self, connection: "_Connection", error: str = "") -> None:
        """An answer is complete, or will never be."""
        if error:
            self.tally.errors[error] += 1
        else:
            self.tally.requests += 1
        if self._rate:
            if not error:
                self._idle.append(connection)
        elif self.running and not error:
            connection.ask()

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        target = self._target
        async with asyncio.timeout(CONNECT_S_MAX):
            _, connection = await loop.create_connection(
                lambda: _Connection(self), target.host, target.port, ssl=target.tls
            )
        self._open.append(connection)
        return connection

    def _arrive(self) -> None:
        while self._next_s <= now_s():
            if self._idle:
                self._idle.popleft().ask()
            else:
                self.tally.errors["no free connection"] += 1
            self._next_s += self._draw.expovariate(self._rate)
        if self.running:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._next_s - now_s()), self._arrive)


class _Connection(asyncio.Protocol):
    def __init__(self, load: Load) -> None:
        self._load = load
        self._stream = load.ask.stream
        self._transport: asyncio.Transport | None = None
        self.busy = False
        self._begin()

    def _begin(self) -> None:
        self._head = b""
        self._in_body = False
        self._left = -1
        self._rest = b""
        self._tail = b""
        self._asked_s = 0.0
        self._first_s = 0.0
        self._sent_s = 0.0
        self._complete = False

    def ask(self) -> None:
        """Send the next request."""
        if self._transport is None:
            self._load.finished(self, "closed")
            return
        self._begin()
        self.busy = True
        self._began_s = now_s()
        self._transport.write(self._load.request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._transport = None
        if self.busy and self._load.running:
            self._end("broken")

    def data_received(self, data: bytes) -> None:
        received_s = now_s()
        if not self._in_body:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            status, data = self._head[9:12], self._head[end + 4 :]
            found = LENGTH.search(self._head, 0, end + 2)
            self._left = int(found[1]) if found else -1
            self._in_body = True
            if status != b"200":
                self._end(f"status {status.decode('latin-1')}")
                self.close()
                return
        if self._left >= 0:
            self._left -= len(data)
            if self._left == 0:
                if self._load.recording:
                    self._load.tally.whole_s.append(received_s - self._began_s)
                self._end()
        else:
            self._streamed(data, received_s)

    def _streamed(self, data: bytes, received_s: float) -> None:
        load, seen = self._load, self._rest + data
        cut = seen.rfind(b"\n") + 1
        lines, self._rest = seen[:cut], seen[cut:]
        load.tally.events += lines.count(b"data: ")
        if load.delays:
            self._delays(lines, received_s)
        self._complete = self._complete or b"[DONE]" in lines
        self._tail = (self._tail + data)[-7:]
        if self._tail.endswith(b"\n0\r\n\r\n"):
            if load.recording and load.delays and self._asked_s:
                arrived_s = self._asked_s - self._began_s
                load.tally.first_s.append(self._first_s + arrived_s)
                load.tally.last_s.append(received_s - self._sent_s + arrived_s)
                load.tally.whole_s.append(received_s - self._began_s)
            self._end("" if self._complete else "cut")

    def _delays(self, lines: bytes, received_s: float) -> None:
        if not self._asked_s and (first := ASKED.search(lines)):
            self._asked_s = float(first[1])
            self._first_s = received_s - float(first[2])
        stamps = SENT.findall(lines)
        if stamps:
            self._sent_s = float(stamps[-1])
            if self._load.recording:
                self._load.tally.token_s.extend([received_s - float(each) for each in stamps])

    def _end(self, error: str = "") -> None:
        self.busy = False
        self._load.finished(self, error)
