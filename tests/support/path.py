"""A gateway's path over the memory bus, with nodes whose every frame the test writes itself."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from panal.bus.memory_bus import MemoryBroker
from panal.core.clock import ManualClock
from panal.core.ids import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    ApiKeyId,
    GatewayId,
    NodeId,
    NodeKey,
    PrincipalId,
    RequestId,
)
from panal.core.nodes import DataClass, Membership, NodeClass
from panal.core.principals import Principal, Role
from panal.core.requests import InferenceRequest, Route
from panal.dispatch.bookings import Bookings
from panal.dispatch.dispatcher import Dispatcher
from panal.dispatch.fleet import Fleet, NodeFacts
from panal.dispatch.limits import Limits
from panal.dispatch.outcome import Finished
from panal.dispatch.watch import HedgeBudget, Watch
from panal.protocol.messages import (
    Acknowledge,
    BodyPart,
    Cancel,
    Event,
    Frame,
    Heartbeat,
    Instruction,
    Present,
    ReplicaReport,
    RunAttempt,
    TokenUsage,
)
from panal.scheduling.continuation import KeptMemory
from panal.scheduling.replicas import ReplicaView

LIMIT_S = 5.0


def principal(
    data_class: DataClass = DataClass.INTERNAL, residency: frozenset[str] = frozenset()
) -> Principal:
    return Principal(
        PrincipalId("prn_test"),
        DEFAULT_TENANT,
        DEFAULT_PROJECT,
        Role.USER,
        ApiKeyId("key_test"),
        data_class,
        residency,
    )


def a_request(clock: ManualClock, **changes: Any) -> InferenceRequest:
    values: dict[str, Any] = {
        "request_id": RequestId("req_1"),
        "response_id": "chatcmpl-1",
        "created_utc_s": 1_800_000_000,
        "route": Route.CHAT,
        "model": "m",
        "stream": True,
        "include_usage": False,
        "body": b'{"model":"m","messages":[{"role":"user","content":"hi"}]}',
        "principal": principal(),
        "data_class": DataClass.INTERNAL,
        "residency": frozenset(),
        "deadline_monotonic_s": clock.monotonic_seconds() + 600.0,
        "total_s_max": 600.0,
        "traceparent": "",
        "prompt_tokens_estimate": 10,
    }
    return InferenceRequest(**(values | changes))


class ListSink:
    """A client that keeps what it gets; ``full`` and ``gone`` are set by the test."""

    def __init__(self) -> None:
        self.on_gone: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self.gone = False
        self.full = False
        self.started = False
        self.resumes = 0
        self.data = b""

    def write(self, data: bytes) -> None:
        self.started = True
        self.data += data

    def keep_alive(self) -> None:
        self.write(b": waiting\n")

    def leave(self) -> None:
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()


@dataclass
class Books:
    """Implements the dispatcher's Observer and keeps everything."""

    started_count: int = 0
    finished: list[Finished] = field(default_factory=list)

    def started(self, request: InferenceRequest) -> Callable[[float, int], None]:
        self.started_count += 1
        return lambda seconds, tokens: None

    def ended(self, finished: Finished) -> None:
        self.finished.append(finished)


class ScriptedNode:
    """A node that does nothing by itself."""

    def __init__(self, broker: MemoryBroker, number: int) -> None:
        self.key = NodeKey("U" + "ABCDEFGHIJKLMNOP"[number] * 55)
        self.node_id = NodeId(f"node_{number}")
        self.instance = f"ins_{number}"
        self.bus = broker.node(self.key)
        self.runs: asyncio.Queue[RunAttempt] = asyncio.Queue()
        self.cancels: list[Cancel] = []
        self.presents: list[Present] = []
        self.acknowledged: list[Acknowledge] = []
        self.parts: list[BodyPart] = []
        self._sequence = 0
        self._numbers: dict[str, int] = {}
        self._busy: set[str] = set()

    def on_run(self, attempt: RunAttempt) -> None:
        self._busy.add(attempt.attempt)
        self.runs.put_nowait(attempt)

    def on_part(self, part: BodyPart) -> None:
        self.parts.append(part)

    def on_acknowledge(self, acknowledgement: Acknowledge) -> None:
        self.acknowledged.append(acknowledgement)

    def on_cancel(self, cancel: Cancel) -> None:
        self._busy.discard(cancel.attempt)
        self.cancels.append(cancel)

    def on_present(self, present: Present) -> None:
        self.presents.append(present)

    def on_instruction(self, instruction: Instruction) -> None: ...

    def on_connection(self, connected: bool) -> None: ...

    def on_refused(self, reason: str) -> None: ...

    async def run(self) -> RunAttempt:
        async with asyncio.timeout(LIMIT_S):
            return await self.runs.get()

    def beat(
        self, *, state: str = "available", healthy: bool = True, reason: str = "", **report: Any
    ) -> None:
        self._sequence += 1
        values: dict[str, Any] = {
            "replica": "rep_1",
            "model": "m",
            "engine": "scripted",
            "twin": "twin",
            "resume": "token_ids",
            "routes": ["chat", "completions", "embeddings"],
            "slots": 4,
            "running": len(self._busy),
        }
        self.bus.heartbeat(
            Heartbeat(
                node=self.node_id,
                instance=self.instance,
                sequence=self._sequence,
                state=state,
                reason=reason,
                replicas=[ReplicaReport(**(values | {"healthy": healthy} | report))],
            )
        )

    def send(self, attempt: RunAttempt, *events: Event, skip: int = 0) -> None:
        if any(event.last for event in events):
            self._busy.discard(attempt.attempt)
        number = self._numbers.get(attempt.attempt, 0) + skip
        self._numbers[attempt.attempt] = number + 1
        self.bus.send_frames(
            GatewayId(attempt.gateway), [Frame(attempt=attempt.attempt, number=number, events=list(events))]
        )

    def tell(self, attempt: RunAttempt, text: str) -> None:
        self.send(attempt, text_event(text))

    def finish(self, attempt: RunAttempt, completion_tokens: int = 3) -> None:
        usage = TokenUsage(prompt_tokens=5, completion_tokens=completion_tokens)
        self.send(attempt, Event(data=b"[end]", finish="stop", usage=usage))


def text_event(text: str) -> Event:
    return Event(data=text.encode(), text=text, token_ids=list(text.encode()), tokens=1)


class Path:
    """Everything between a request and the bus."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        queue_length_max: int = 8,
        queue_wait_s_max: float = 30.0,
        stale_patience_s: float = 0.01,
    ) -> None:
        self.clock = ManualClock()
        self.broker = MemoryBroker()
        self.bus = self.broker.gateway(GatewayId("gw_1"))
        self.fleet = Fleet(self.clock)
        self.queue_lengths: list[int] = []
        limits = limits or Limits(recovery_s_max=1.0)
        self.bookings = Bookings(
            self.fleet,
            self.clock,
            lambda count: 0,
            queue_length_max=queue_length_max,
            queue_wait_s_max=queue_wait_s_max,
            on_queue=self.queue_lengths.append,
            stale_patience_s=stale_patience_s,
        )
        self.fleet.on_change = self.bookings.wake
        self.books = Books()
        self.memory = KeptMemory()
        self.dispatcher = Dispatcher(
            self.bus,
            self.bookings,
            self.clock,
            self.books,
            limits,
            self._allowed,
            lambda tenant: f"salt of {tenant}",
            memory=self.memory,
        )
        self.hedges = HedgeBudget(saved=0.0)
        self.watch = Watch(self.dispatcher, self.fleet, self.clock, limits, self.hedges)
        self.nodes: list[ScriptedNode] = []
        self._requests = 0
        self.settling = False
        self.allowed: Callable[[InferenceRequest, ReplicaView], bool] = lambda request, replica: True

    def _allowed(self, request: InferenceRequest, replica: ReplicaView) -> bool:
        return self.allowed(request, replica)

    async def start(self, node_count: int) -> "Path":
        await self.bus.start(self)
        for number in range(node_count):
            node = ScriptedNode(self.broker, number)
            await node.bus.start(node)
            self.nodes.append(node)
        self.fleet.set_facts([self.facts(node) for node in self.nodes])
        for node in self.nodes:
            node.beat()
        await self.settled()
        return self

    def facts(self, node: ScriptedNode, **changes: Any) -> NodeFacts:
        values: dict[str, Any] = {
            "node_id": node.node_id,
            "key": node.key,
            "name": f"desk-{node.node_id[-1]}",
            "node_class": NodeClass.DEDICATED,
            "site": "",
            "country": "ES",
            "data_class": DataClass.INTERNAL,
            "membership": Membership.ACTIVE,
        }
        return NodeFacts(**(values | changes))

    def on_frames(self, key: NodeKey, frames: Sequence[Frame]) -> None:
        self.dispatcher.on_frames(key, frames)

    def on_heartbeat(self, key: NodeKey, heartbeat: Heartbeat) -> None:
        self.fleet.heard(key, heartbeat)

    def on_absent(self, key: NodeKey) -> None:
        self.fleet.absent(key)
        self.dispatcher.on_absent(key, settling=self.settling)

    def on_fleet_changed(self) -> None: ...

    def on_connection(self, connected: bool) -> None: ...

    def begin(self, **changes: Any) -> tuple["asyncio.Task[bytes]", ListSink]:
        sink = ListSink()
        self._requests += 1
        request = a_request(self.clock, request_id=RequestId(f"req_{self._requests}"), **changes)
        return asyncio.get_running_loop().create_task(self.dispatcher.answer(request, sink)), sink

    async def settled(self) -> None:
        """Let everything that is ready happen: the memory bus delivers within a few turns of the loop."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def runner(self) -> tuple[ScriptedNode, RunAttempt]:
        """Whichever node got the next attempt."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for node in self.nodes:
                    if not node.runs.empty():
                        return node, node.runs.get_nowait()
                await asyncio.sleep(0)

    def beat_all(self) -> None:
        for node in self.nodes:
            node.beat()
