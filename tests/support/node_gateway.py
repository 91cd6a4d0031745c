"""A gateway as far as a node can see one: opens attempts, keeps the frames, acknowledges what it got."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from panal.bus.memory_bus import MemoryBroker
from panal.core.ids import GatewayId, NodeKey
from panal.protocol.messages import (
    Acknowledge,
    BodyPart,
    Cancel,
    Emitted,
    Event,
    Frame,
    Heartbeat,
    ReplicaReport,
    RunAttempt,
)

KEY = NodeKey("U" + "A" * 55)
GATEWAY = GatewayId("gw_test")


class SeenAttempt:
    """All events of one attempt."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[Event] = []
        self.numbers: list[int] = []
        self.changed = asyncio.Event()

    @property
    def data(self) -> bytes:
        return b"".join(event.data for event in self.events)

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events)

    @property
    def token_ids(self) -> list[int] | None:
        ids: list[int] = []
        for event in self.events:
            if event.text and event.token_ids is None:
                return None
            ids += event.token_ids or []
        return ids

    @property
    def last(self) -> Event | None:
        return next((event for event in self.events if event.last), None)

    def emitted(self) -> Emitted:
        """What a gateway would hand to the next attempt."""
        usages = [event.usage for event in self.events if event.usage is not None]
        return Emitted(
            text=self.text,
            token_ids=self.token_ids,
            prompt_tokens=usages[-1].prompt_tokens if usages else 0,
            completion_tokens=sum(event.tokens for event in self.events),
            role_sent=any(event.role for event in self.events),
        )

    async def until(self, condition: Callable[["SeenAttempt"], bool], timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()

    async def end(self, timeout_s: float = 20.0) -> Event:
        await self.until(lambda seen: seen.last is not None, timeout_s)
        assert self.last is not None
        return self.last


class TestGateway:
    """GatewayHandlers over a memory bus."""

    __test__ = False

    def __init__(self, broker: MemoryBroker, *, acknowledge: bool = True, key: NodeKey = KEY) -> None:
        self._bus = broker.gateway(GATEWAY)
        self._key = key
        self.acknowledges = acknowledge
        self.attempts: dict[str, SeenAttempt] = {}
        self.messages = 0
        self.heartbeat: Heartbeat | None = None
        self._beat = asyncio.Event()
        self._data_bytes: dict[str, int] = {}
        self._made = 0

    async def start(self) -> None:
        await self._bus.start(self)

    async def close(self) -> None:
        await self._bus.close()

    def on_frames(self, key: NodeKey, frames: Sequence[Frame]) -> None:
        self.messages += 1
        for frame in frames:
            seen = self.attempts.setdefault(frame.attempt, SeenAttempt(frame.attempt))
            seen.numbers.append(frame.number)
            seen.events += frame.events
            total = self._data_bytes.get(frame.attempt, 0) + sum(len(event.data) for event in frame.events)
            self._data_bytes[frame.attempt] = total
            if self.acknowledges and total:
                self.acknowledge(frame.attempt)
            seen.changed.set()

    def acknowledge(self, attempt: str, data_bytes: int | None = None) -> None:
        total = self._data_bytes.get(attempt, 0) if data_bytes is None else data_bytes
        self._bus.acknowledge(self._key, Acknowledge(attempt=attempt, data_bytes=total))

    def on_heartbeat(self, key: NodeKey, heartbeat: Heartbeat) -> None:
        self.heartbeat = heartbeat
        self._beat.set()

    def on_fleet_changed(self) -> None: ...

    def on_connection(self, connected: bool) -> None: ...

    async def heartbeat_with(
        self, condition: Callable[[Heartbeat], bool], timeout_s: float = 30.0
    ) -> Heartbeat:
        async with asyncio.timeout(timeout_s):
            while self.heartbeat is None or not condition(self.heartbeat):
                self._beat.clear()
                await self._beat.wait()
        return self.heartbeat

    async def ready(self) -> ReplicaReport:
        beat = await self.heartbeat_with(lambda heartbeat: heartbeat.state in ("available", "serving"))
        return beat.replicas[0]

    def cancel(self, attempt: str) -> None:
        self._bus.cancel(self._key, Cancel(attempt=attempt, reason="test"))

    def open(
        self, content: dict[str, Any], /, *, body_parts: Sequence[BodyPart] = (), **changes: Any
    ) -> SeenAttempt:
        """Open an attempt on the replica of the newest heartbeat."""
        assert self.heartbeat is not None
        self._made += 1
        here = {"instance": self.heartbeat.instance, "replica": self.heartbeat.replicas[0].replica}
        return self.send_run(run_attempt(f"req_{self._made}.1", content, **{**here, **changes}), body_parts)

    def send_run(self, run: RunAttempt, parts: Sequence[BodyPart] = ()) -> SeenAttempt:
        seen = self.attempts.setdefault(run.attempt, SeenAttempt(run.attempt))
        self._bus.run(self._key, run, parts)
        return seen


def run_attempt(name: str, body: dict[str, Any], /, **changes: Any) -> RunAttempt:
    """A RunAttempt with everything set to something plain."""
    fields: dict[str, Any] = {
        "attempt": name,
        "gateway": GATEWAY,
        "instance": "ins_test",
        "replica": "rep_test",
        "response_id": "chatcmpl-test",
        "created_utc_s": 1_800_000_000,
        "route": "chat",
        "model": "client-model",
        "stream": True,
        "include_usage": True,
        "tenant": "tnt_default",
        "project": "prj_default",
        "principal": "prn_test",
        "data_class": 0,
        "deadline_s": 60.0,
        "first_token_s_max": 30.0,
        "between_tokens_s_max": 30.0,
        "body": msgspec.json.encode(body),
    }
    return RunAttempt(**{**fields, **changes})


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "client-model", "messages": [{"role": "user", "content": text}], **more}


def chunks_of(data: bytes) -> list[Any]:
    """The decoded events of a stream; the last may be the text [DONE]."""
    payloads = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    return [payload if payload == "[DONE]" else msgspec.json.decode(payload) for payload in payloads]


def text_of(data: bytes) -> str:
    """What a client reads in a chat stream."""
    parts = []
    for chunk in chunks_of(data):
        if chunk != "[DONE]":
            parts += [_text_of_choice(choice) for choice in chunk["choices"]]
    return "".join(parts)


def _text_of_choice(choice: dict[str, Any]) -> str:
    if "delta" in choice:
        return choice["delta"].get("content") or ""
    return choice["text"]
