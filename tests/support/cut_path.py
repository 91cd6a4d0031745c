"""The whole path in memory with real agent parts and the echo engine, cut wherever a test says."""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from panal.bus.memory_bus import MemoryBroker
from panal.core.errors import PanalError
from panal.core.ids import GatewayId, IdSource, InstanceId, ReplicaId, RequestId
from panal.core.requests import InferenceRequest, Route
from panal.gateway.translate import Caller, read_request
from panal.node.attempts import Attempts, ReplicaIdentity
from panal.node.counts import KeptCounts
from panal.node.outbox import Outbox
from panal.protocol.messages import Acknowledge, BodyPart, Cancel, Frame, Present, RunAttempt
from tests.support.memory_echo import MemoryEcho
from tests.support.path import ListSink, Path, ScriptedNode, principal

ANSWER_S_MAX = 5.0
GONE_AFTER_S = 2.6
"""Longer than the silence after which a node counts as gone."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How and at which of its frames an attempt ends.

    ``gap``: that frame is lost on its way. ``silence``: that frame and all that follows, and heartbeats.
    ``crash``: the engine dies after it. ``leaving``: the node says after it that it leaves; ``grace_s``
    is what it may still generate.
    """

    kind: str
    at: int
    grace_s: float = 0.0


class EchoNode(ScriptedNode):
    """A node whose attempts are real."""

    def __init__(self, broker: MemoryBroker, number: int, path: "CutPath", engine: MemoryEcho) -> None:
        super().__init__(broker, number)
        self._path = path
        self.silent = False
        self.engine = engine
        self.counts = KeptCounts()
        self.attempts = Attempts(
            ReplicaIdentity(InstanceId(self.instance), ReplicaId("rep_1")),
            engine,
            Outbox(self._send),
            self.counts,
            lambda: None,
            path.clock,
        )

    def on_run(self, attempt: RunAttempt) -> None:
        self.engine.well = not attempt.attempt.endswith(".1")
        self._path.runs.append((self, attempt))
        self.attempts.run(attempt)

    def on_part(self, part: BodyPart) -> None:
        self.attempts.part(part)

    def on_acknowledge(self, acknowledgement: Acknowledge) -> None:
        self.attempts.acknowledge(acknowledgement)

    def on_present(self, present: Present) -> None:
        if not self.silent:
            gateway = GatewayId(present.gateway)
            self.attempts.reconcile(gateway, present.attempts, partial=present.partial)

    def on_cancel(self, cancel: Cancel) -> None:
        super().on_cancel(cancel)
        self.attempts.cancel(cancel)

    def _send(self, gateway: GatewayId, frames: Sequence[Frame]) -> None:
        kept = [frame for frame in frames if self._path.passes(self, frame)]
        if kept:
            self.bus.send_frames(gateway, kept)


@dataclass(slots=True)
class Seen:
    """An answer as its client can tell it from another one; ``data`` is everything that it got."""

    data: bytes
    ids: set[str] = field(default_factory=set)
    created: set[int] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    text: str = ""
    roles: int = 0
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finishes: list[str] = field(default_factory=list)
    usages: list[Any] = field(default_factory=list)
    done: int = 0
    error: str = ""
    resumes: int = 0

    def view(self) -> tuple[Any, ...]:
        return (self.ids, self.created, self.models, self.text, self.roles, self.calls, self.finishes,
                self.usages, self.done, self.error)  # fmt: skip


class CutPath(Path):
    """``node_count`` equal echo nodes. ``cuts[0]`` strikes the first attempt, ``cuts[1]`` the second."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(**changes)
        self.cuts: Sequence[Cut] = ()
        self.frames_seen: dict[int, int] = {}
        self.runs: list[tuple[EchoNode, RunAttempt]] = []
        self._faults: set[asyncio.Task[None]] = set()
        self._ids = IdSource(self.clock, os.urandom)

    async def start(self, node_count: int, **engine: Any) -> "CutPath":
        await self.bus.start(self)
        for number in range(node_count):
            node = EchoNode(self.broker, number, self, MemoryEcho(**engine))
            await node.bus.start(node)
            self.nodes.append(node)
        self.fleet.set_facts([self.facts(node) for node in self.nodes])
        self.beat_all()
        await self.settled()
        return self

    def beat_all(self) -> None:
        for node in self.nodes:
            if isinstance(node, EchoNode) and not node.silent:
                node.beat(**self.report(node))

    def report(self, node: EchoNode) -> dict[str, Any]:
        facts = node.engine.facts
        return {
            "resume": facts.resume.value,
            "twin": facts.twin,
            "slots": facts.slots,
            "continues_messages": facts.continues_messages,
            "running": node.attempts.running,
            "waiting": node.attempts.waiting,
        }

    # --- the cuts

    def passes(self, node: EchoNode, frame: Frame) -> bool:
        """Whether this frame reaches the gateway; sets off what is to happen at it."""
        attempt = int(frame.attempt.rpartition(".")[2])
        self.frames_seen[attempt] = frame.number + 1
        if node.silent:
            return False
        cut = self.cuts[attempt - 1] if attempt <= len(self.cuts) else None
        if cut is None or frame.number < cut.at:
            return True
        if cut.kind == "gap":
            if frame.number == cut.at:
                self._soon(self._lose())
            return frame.number != cut.at
        if cut.kind == "silence":
            node.silent = True
            self._soon(self._lose())
            return False
        if frame.number == cut.at:
            if cut.kind == "crash":
                self._soon(node.attempts.fail_all("the engine crashed"))
            elif cut.kind == "leaving":
                self._soon(self._leave(node, cut.grace_s))
        return True

    def _soon(self, fault: Any) -> None:
        task = asyncio.get_running_loop().create_task(fault)
        self._faults.add(task)
        task.add_done_callback(self._faults.discard)

    async def _leave(self, node: EchoNode, grace_s: float) -> None:
        node.beat(state="yielding", **self.report(node))
        await node.attempts.leave_all(grace_s)

    async def _lose(self) -> None:
        """Time passes in which only the nodes are heard that are not silent."""
        await self.settled()
        self.clock.advance(GONE_AFTER_S)
        self.beat_all()
        await self.settled()
        self.watch.look()

    # --- asking

    def request(
        self, route: Route, body: dict[str, Any], *, show_nodes: bool = False, number: int = 1
    ) -> InferenceRequest:
        """The request as the gateway reads it, always with the same names."""
        read = read_request(
            route, json.dumps(body).encode(), Caller(principal()), self._ids, self.clock, 600.0
        )
        return replace(
            read,
            request_id=RequestId(f"req_{number}"),
            response_id="chatcmpl-1",
            created_utc_s=1_800_000_000,
            show_nodes=show_nodes,
        )

    async def ask(self, route: Route, body: dict[str, Any], *cuts: Cut, show_nodes: bool = False) -> Seen:
        """The answer to ``body``, cut so often. A PanalError becomes ``error`` of what was seen."""
        self.cuts = cuts
        sink = ListSink()
        error = ""
        tail = b""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                tail = await self.dispatcher.answer(self.request(route, body, show_nodes=show_nodes), sink)
        except PanalError as failure:
            error = failure.code
        finally:
            for task in list(self._faults):
                await task
            for node in self.nodes:
                if isinstance(node, EchoNode):
                    await node.attempts.close()
        seen = seen_of(sink.data + tail, stream=bool(body.get("stream")))
        seen.error, seen.resumes = error, sink.resumes
        return seen


def seen_of(data: bytes, *, stream: bool) -> Seen:
    """Read what a client got, strictly: every line is a comment or a whole event."""
    seen = Seen(data)
    if not stream:
        if data:
            body = json.loads(data)
            _take(seen, body, "message")
            seen.done = 1
        return seen
    for line in data.decode().split("\n"):
        if not line or line.startswith(":"):
            continue
        assert line.startswith("data: "), line
        if line == "data: [DONE]":
            seen.done += 1
            continue
        assert not seen.done, "nothing follows the end"
        _take(seen, json.loads(line[6:]), "delta")
    return seen


def _take(seen: Seen, body: dict[str, Any], part: str) -> None:
    seen.ids.add(body["id"])
    seen.created.add(body["created"])
    seen.models.add(body["model"])
    if body.get("usage") is not None:
        seen.usages.append(body["usage"])
    for choice in body["choices"]:
        delta = choice.get(part, {})
        seen.text += choice.get("text") or delta.get("content") or ""
        seen.roles += delta.get("role") is not None
        for position, call in enumerate(delta.get("tool_calls") or ()):
            known = seen.calls.setdefault(
                call.get("index", position), {"id": "", "name": "", "arguments": ""}
            )
            known["id"] += call.get("id") or ""
            known["name"] += call["function"].get("name") or ""
            known["arguments"] += call["function"].get("arguments") or ""
        if choice.get("finish_reason"):
            seen.finishes.append(choice["finish_reason"])
