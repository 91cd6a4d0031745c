"""A deterministic engine for tests, demonstrations and the simulator's calibration: no model, no GPU.

``python -m panal.node.engines.echo_engine --home H --port 0``. It speaks vLLM's dialect with one token
per byte, so that characters are cut by tokens, and misbehaves on request: by an ``x_echo`` object in a
body, or by options for all requests. ``n`` choices all say the same. Faults strike answers that begin
here, not ones that are resumed.

x_echo: delay_first_s, delay_token_s, status, stop_after (ends without a finish), close_after (hangs up),
freeze_after (goes silent), abort_after (finishes with "abort"), split_bytes, crlf, extra (comes back as
x_reply), echo_body (the answer is the body as received), also_resumed (faults strike resumes too),
usage_delay_s (from the finish to the usage), usage (omit | lie | cumulative | finish: in the last chunk |
with_done: in the write of [DONE] | after_done).
"""

import argparse
import asyncio
import contextlib
import signal
import sys
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from panal.node.engines.child import (
    Greeting,
    Loading,
    Ready,
    die_with_parent,
    lower_priority,
    parent_gone,
    read_greeting,
    say_ready,
)
from panal.node.engines.echo_answers import DIMENSIONS_DEFAULT, embedding, render
from panal.node.engines.echo_http import EchoConnection, Exchange, decoded
from panal.node.engines.echo_stream import EchoAnswer, Knobs, prompt_bytes
from panal.node.engines.engine import Json

PREFIXES_MAX = 64
"""So many prompts are remembered as read."""


@dataclass(slots=True)
class EchoStats:
    """What the engine did, for tests to look at; ``last_body`` only with the engine's key."""

    started: int = 0
    running: int = 0
    waiting: int = 0
    finished: int = 0
    cancelled: int = 0
    last_body: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EchoOptions:
    """Options of the whole engine. ``context_tokens`` 0: no limit."""

    model: str = "echo"
    api_key: str = ""
    slots: int = 256
    context_tokens: int = 0
    delay_first_s: float = 0.0
    delay_token_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    """0: prompts are read at once. Else so fast, but for what the last prompts and answers have in common."""
    dimensions: int = DIMENSIONS_DEFAULT


@dataclass(frozen=True, slots=True)
class SlowLoad:
    """A start that takes ``seconds`` and tells its progress in ``steps``; with 0 it says nothing."""

    seconds: float = 0.0
    steps: int = 0

    async def run(self) -> None:
        for step in range(1, self.steps + 1):
            await asyncio.sleep(self.seconds / self.steps)
            say_ready(Loading(step / self.steps))
        if not self.steps:
            await asyncio.sleep(self.seconds)


class EchoEngine:
    """Answers requests; ``handle`` is called for each of them."""

    def __init__(self, options: EchoOptions) -> None:
        self._options = options
        self._slots = asyncio.Semaphore(options.slots)
        self._read: deque[bytes] = deque(maxlen=PREFIXES_MAX)
        self.stats = EchoStats()
        self.frozen = False
        """While True the engine takes requests and says nothing, not even of its health."""

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request."""
        path = exchange.path.partition("?")[0]
        if self.frozen and not path.startswith("/echo/"):
            await asyncio.Event().wait()
        if exchange.method == "GET":
            self._get(exchange, path)
            return
        body = decoded(exchange.body)
        if self._options.api_key and exchange.key != self._options.api_key:
            exchange.json(refusal(401, "wrong key"), 401)
        elif path == "/echo/freeze":
            self.frozen = bool(body and body.get("frozen", True))
            exchange.json({"frozen": self.frozen})
        elif body is None:
            exchange.json(refusal(400, "the body is not a JSON object"), 400)
        elif path == "/tokenize":
            self._tokenize(exchange, body)
        elif path == "/v1/embeddings":
            self._embed(exchange, body)
        elif path in ("/v1/chat/completions", "/v1/completions"):
            await self._generate(exchange, body, chat=path.startswith("/v1/chat"))
        else:
            exchange.json(refusal(404, "no such path"), 404)

    def _get(self, exchange: Exchange, path: str) -> None:
        if path == "/health":
            exchange.json({"status": "ok"})
        elif path == "/version":
            exchange.json({"version": "echo"})
        elif path == "/v1/models":
            model = {"id": self._options.model, "object": "model", "owned_by": "panal"}
            context = {"max_model_len": self._options.context_tokens} if self._options.context_tokens else {}
            exchange.json({"object": "list", "data": [{**model, **context}]})
        elif path == "/echo/stats":
            known = not self._options.api_key or exchange.key == self._options.api_key
            exchange.json(self.stats if known else replace(self.stats, last_body={}))
        else:
            exchange.json(refusal(404, "no such path"), 404)

    def _tokenize(self, exchange: Exchange, body: Json) -> None:
        messages = body.get("messages")
        text = render(messages) if isinstance(messages, list) else str(body.get("prompt", ""))
        ids = list(text.encode())
        exchange.json({"count": len(ids), "max_model_len": self._options.context_tokens, "tokens": ids})

    def _embed(self, exchange: Exchange, body: Json) -> None:
        knobs = Knobs.of(body, 0.0, 0.0)
        if knobs.status:
            exchange.json(refusal(knobs.status, "as asked"), knobs.status)
            return
        if body.get("encoding_format", "float") != "float":
            exchange.json(refusal(400, "this engine only knows floats"), 400)
            return
        given = body.get("input")
        texts = given if isinstance(given, list) else [given]
        rows = [
            {
                "object": "embedding",
                "index": index,
                "embedding": embedding(str(text), self._options.dimensions),
            }
            for index, text in enumerate(texts)
        ]
        tokens = sum(len(str(text).encode()) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        exchange.json({"object": "list", "model": self._options.model, "data": rows, "usage": usage})

    async def _generate(self, exchange: Exchange, body: Json, *, chat: bool) -> None:
        stats = self.stats
        stats.last_body = body
        stats.started += 1
        stats.waiting += 1
        waiting = True
        try:
            async with self._slots:
                stats.waiting -= 1
                waiting = False
                stats.running += 1
                try:
                    await self._answer(exchange, body, chat=chat)
                finally:
                    stats.running -= 1
            stats.finished += 1
        except asyncio.CancelledError:
            stats.cancelled += 1
            raise
        finally:
            stats.waiting -= waiting

    async def _answer(self, exchange: Exchange, body: Json, *, chat: bool) -> None:
        knobs = Knobs.of(body, self._options.delay_first_s, self._options.delay_token_s)
        if knobs.status:
            exchange.json(refusal(knobs.status, "as asked"), knobs.status)
            return
        prompt = prompt_bytes(body, chat=chat)
        if prompt is None:
            exchange.json(refusal(400, "there is no prompt"), 400)
            return
        limit = self._options.context_tokens
        if limit and len(prompt) > limit:
            message = f"this model's maximum context length is {limit} tokens, the prompt has {len(prompt)}"
            exchange.json(refusal(400, message), 400)
            return
        room = limit - len(prompt) if limit else None
        await self._read_prompt(prompt)
        answer = EchoAnswer(body, prompt, knobs, self._options.model, chat=chat, room_tokens=room)
        if body.get("stream"):
            await answer.stream(exchange)
        else:
            exchange.json(await answer.whole())

    async def _read_prompt(self, prompt: bytes) -> None:
        """Take the time that a real engine with a prefix cache takes."""
        if not self._options.prefill_tokens_per_s:
            return
        known = max((_common_bytes(prompt, before) for before in self._read), default=0)
        await asyncio.sleep((len(prompt) - known) / self._options.prefill_tokens_per_s)
        self._read.append(prompt)


def _common_bytes(first: bytes, second: bytes) -> int:
    """Length of what both begin with."""
    pairs = zip(first, second, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def refusal(status: int, message: str) -> Json:
    """An error as vLLM writes it."""
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


async def serve_echo(
    engine: EchoEngine, host: str, port: int
) -> tuple[asyncio.Server, set[asyncio.Task[None]]]:
    """Listen. The tasks are the requests in progress; close the server, then cancel them."""
    tasks: set[asyncio.Task[None]] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: EchoConnection(engine.handle, tasks), host, port)
    return server, tasks


async def run(options: EchoOptions, port: int, load: SlowLoad, *, supervised: bool) -> None:
    """Load, then serve, until the parent goes (supervised) or a signal comes."""
    stop = asyncio.Event()
    if sys.platform != "win32":
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    waits: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait())]
    if supervised:
        waits.append(asyncio.create_task(parent_gone()))
    loading = asyncio.create_task(load.run())
    await asyncio.wait([*waits, loading], return_when=asyncio.FIRST_COMPLETED)
    tasks: set[asyncio.Task[None]] = {loading}
    if loading.done() and not stop.is_set():
        server, tasks = await serve_echo(EchoEngine(options), "127.0.0.1", port)
        bound = server.sockets[0].getsockname()[1]
        say_ready(Ready(port=bound, context_tokens=options.context_tokens, slots=options.slots))
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        server.close()
    for task in [*waits, *tasks]:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*waits, *tasks, return_exceptions=True)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="echo_engine")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--supervised", action="store_true", help="key and end of life come by stdin")
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--model", default="echo")
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--context-tokens", type=int, default=0)
    parser.add_argument("--delay-first-s", type=float, default=0.0)
    parser.add_argument("--delay-token-s", type=float, default=0.0)
    parser.add_argument("--load-s", type=float, default=0.0, help="the start takes so long")
    parser.add_argument("--load-steps", type=int, default=0, help="and tells its progress so often")
    parser.add_argument("--prefill-tokens-per-s", type=float, default=0.0)
    given = parser.parse_args()
    greeting = Greeting(api_key="")
    if given.supervised:
        die_with_parent()
        greeting = read_greeting()
    lower_priority(given.nice)
    options = EchoOptions(
        model=given.model,
        api_key=greeting.api_key,
        slots=given.slots,
        context_tokens=given.context_tokens,
        delay_first_s=given.delay_first_s,
        delay_token_s=given.delay_token_s,
        prefill_tokens_per_s=given.prefill_tokens_per_s,
    )
    load = SlowLoad(given.load_s, given.load_steps)
    asyncio.run(run(options, given.port, load, supervised=given.supervised))


if __name__ == "__main__":
    main()
