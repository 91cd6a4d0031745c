"""Many nodes in one process: each joins for itself, has its own key and connections, and makes up its tokens.

Between the bus and a client everything is as with real agents; what lies behind a real agent is left out,
so that a small machine can play a large fleet. Every token is a frame and a message of its own.
"""

import argparse
import asyncio
import json
import os
import random
from dataclasses import dataclass
from typing import Any

import msgspec
import uvloop

from panal.bench.engine import TOKENS_DEFAULT
from panal.bench.stamps import PACE_FIELD, now_s, stamp
from panal.bus.connector import Servers
from panal.bus.nats_bus import NatsNodeBus
from panal.bus.nkeys import SigningKey
from panal.core.clock import SystemClock
from panal.core.errors import BusError
from panal.core.ids import GatewayId, IdSource
from panal.node.enrolled import EnrolledNode
from panal.node.joining import Machine, join
from panal.protocol.messages import (
    Acknowledge,
    BodyPart,
    Cancel,
    Event,
    Frame,
    Heartbeat,
    Instruction,
    ReplicaReport,
    RunAttempt,
    TokenUsage,
)

HEARTBEAT_EACH_S = 0.5
SLOTS = 64


@dataclass(slots=True)
class Stream:
    """One attempt on its way."""

    run: RunAttempt
    gateway: GatewayId
    tokens: int
    pace_s: float
    asked_s: float
    made: int = 0


class PlayedNode:
    """Implements bus.seam.NodeHandlers."""

    def __init__(self, enrolled: EnrolledNode, model: str, ids: IdSource) -> None:
        self._loop = asyncio.get_running_loop()
        self._enrolled = enrolled
        self._model = model
        self._instance = ids.instance()
        self._replica = ids.replica()
        self._sequence = 0
        self._streams: dict[str, Stream] = {}
        self._bus = NatsNodeBus(
            Servers.at(enrolled.bus_urls, enrolled.ca_pem),
            SigningKey.from_seed(enrolled.key_seed),
            enrolled.credential,
            randomness=random.random,
        )

    async def start(self) -> None:
        await self._bus.start(self)

    def beat(self) -> None:
        """Send heartbeats from now on."""
        running = len(self._streams)
        report = ReplicaReport(
            replica=self._replica,
            model=self._model,
            engine="played",
            routes=["chat"],
            slots=SLOTS,
            running=running,
            decode_s_per_token=0.02,
            prefill_tokens_per_s=5000.0,
        )
        heartbeat = Heartbeat(
            node=self._enrolled.node,
            instance=self._instance,
            sequence=self._sequence,
            state="serving" if running else "available",
            replicas=[report],
        )
        self._sequence += 1
        try:
            self._bus.heartbeat(heartbeat)
        except BusError:
            self._sequence -= 1  # the next one will do
        self._loop.call_later(HEARTBEAT_EACH_S, self.beat)

    def on_run(self, attempt: RunAttempt) -> None:
        fields: dict[str, Any] = msgspec.json.decode(attempt.body)
        tokens = fields.get("max_tokens") or TOKENS_DEFAULT
        pace_s = fields.get(PACE_FIELD, 0) / 1000
        if not attempt.stream:
            usage = TokenUsage(prompt_tokens=64, completion_tokens=tokens)
            text = " ".join(["token"] * tokens)
            event = Event(
                data=_whole(attempt, text, usage), text=text, tokens=tokens, finish="length", usage=usage
            )
            self._send(Stream(attempt, GatewayId(attempt.gateway), tokens, 0.0, now_s()), 0, event)
            return
        stream = Stream(attempt, GatewayId(attempt.gateway), tokens, pace_s, now_s())
        self._streams[attempt.attempt] = stream
        due_s = self._loop.time() + pace_s
        self._loop.call_at(due_s, self._token, stream, due_s)

    def _token(self, stream: Stream, due_s: float) -> None:
        if stream.run.attempt not in self._streams:
            return
        stream.made += 1
        first = stream.made == 1
        text = (f"^{stamp(stream.asked_s).decode()}" if first else "") + f"@{stamp(now_s()).decode()} "
        self._send(
            stream, stream.made - 1, Event(data=_chunk(stream.run, text), text=text, tokens=1, role=first)
        )
        if stream.made < stream.tokens:
            due_s += stream.pace_s
            self._loop.call_at(due_s, self._token, stream, due_s)
            return
        del self._streams[stream.run.attempt]
        usage = TokenUsage(prompt_tokens=64, completion_tokens=stream.tokens)
        self._send(stream, stream.made, Event(data=_end(stream.run), finish="length", usage=usage))

    def _send(self, stream: Stream, number: int, event: Event) -> None:
        frame = Frame(attempt=stream.run.attempt, number=number, events=[event])
        try:
            self._bus.send_frames(stream.gateway, [frame])
        except BusError:
            self._streams.pop(stream.run.attempt, None)

    def on_cancel(self, cancel: Cancel) -> None:
        self._streams.pop(cancel.attempt, None)

    def on_part(self, part: BodyPart) -> None: ...

    def on_acknowledge(self, acknowledgement: Acknowledge) -> None: ...

    def on_instruction(self, instruction: Instruction) -> None: ...

    def on_connection(self, connected: bool) -> None: ...

    def on_refused(self, reason: str) -> None:
        raise SystemExit(f"a played node is refused: {reason}")


def _chunk(run: RunAttempt, text: str) -> bytes:
    return (
        f'data: {{"id":"{run.response_id}","object":"chat.completion.chunk","created":{run.created_utc_s},'
        f'"model":"{run.model}","choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}\n\n'
    ).encode()


def _whole(run: RunAttempt, text: str, usage: TokenUsage) -> bytes:
    message = {"role": "assistant", "content": text}
    return msgspec.json.encode(
        {
            "id": run.response_id,
            "object": "chat.completion",
            "created": run.created_utc_s,
            "model": run.model,
            "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        }
    )


def _end(run: RunAttempt) -> bytes:
    return (
        f'data: {{"id":"{run.response_id}","object":"chat.completion.chunk","created":{run.created_utc_s},'
        f'"model":"{run.model}","choices":[{{"index":0,"delta":{{}},"finish_reason":"length"}}]}}\n\n'
        "data: [DONE]\n\n"
    ).encode()


async def play(members: list[EnrolledNode], model: str) -> None:
    """Until killed."""
    ids = IdSource(SystemClock(), os.urandom)
    nodes = [PlayedNode(member, model, ids) for member in members]
    for node in nodes:
        await node.start()
    for place, node in enumerate(nodes):
        asyncio.get_running_loop().call_later(HEARTBEAT_EACH_S * place / len(nodes), node.beat)
    print(json.dumps({"nodes": len(nodes)}), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    token, clock = os.environ["PANAL_BENCH_TOKEN"], SystemClock()
    members = [
        join(options.url, token, Machine(f"played-{place}", ""), clock, os.urandom)
        for place in range(options.nodes)
    ]
    uvloop.run(play(members, options.model))


if __name__ == "__main__":
    main()
