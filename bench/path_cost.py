"""What a request costs in a gateway's own code: ``python bench/path_cost.py``.

The whole path of a request that is not streamed, in one process and on one thread: uvicorn's parser, our
limits, identity, policy, routing, RunAttempt as bytes, the frame as bytes, the answer, usage spool, metrics,
log file. Only sockets, TLS, the bus's server and the node are left out, so that the figure is steady enough
to judge a small change by; ``bench/gateway.py`` measures the rest. The lowest batch counts: what others do
on the machine can only add to it. Since a machine changes its speed, the cost is also told in empty Python
calls that were timed right before each batch. Nothing is asserted.
"""

import argparse
import asyncio
import cProfile
import gc
import json
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from panal.bus.nats_client import LinkEvents
from panal.bus.nats_parser import Handler
from panal.bus.sides import GatewaySide
from panal.cli.gateway_program import GARBAGE_EACH_OBJECTS
from panal.cli.request_path import drawn
from panal.core.clock import SystemClock
from panal.core.ids import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    ApiKeyId,
    GatewayId,
    IdSource,
    NodeId,
    NodeKey,
)
from panal.core.nodes import DataClass, Membership, NodeClass
from panal.core.principals import Role
from panal.core.records import AliasRecord, ApiKeyRecord
from panal.core.requests import InferenceRequest
from panal.dispatch.bookings import Bookings
from panal.dispatch.dispatcher import Dispatcher
from panal.dispatch.fleet import Fleet, NodeFacts
from panal.dispatch.limits import Limits
from panal.dispatch.names import ServedNames
from panal.gateway.app import App
from panal.gateway.door import Door
from panal.gateway.http_protocol import HttpLimits, PanalHttpProtocol
from panal.gateway.inference import Inference
from panal.gateway.observer import RequestObserver
from panal.identity.api_keys import digest_of, new_key
from panal.identity.key_directory import KeyDirectory
from panal.policy.residency import node_may_see
from panal.protocol import subjects
from panal.protocol.codec import encode
from panal.protocol.messages import Event, Frame, Frames, Heartbeat, ReplicaReport, TokenUsage
from panal.scheduling.replicas import ReplicaView
from panal.store.usage_spool import UsageSpool
from panal.telemetry.logs import configure
from panal.telemetry.metrics import GatewayMetrics

MODEL = "bench-model"
PLAYED = GatewayId("gw_" + "0" * 26)
CONNECTIONS = 64
PER_BATCH = 5


class OneKey:
    """Implements identity's KeySource: one key, never changed."""

    def __init__(self, record: ApiKeyRecord) -> None:
        self._record = record

    async def keys_revision(self) -> int:
        return 1

    async def usable_keys(self) -> Sequence[ApiKeyRecord]:
        return [self._record]

    async def note_key_use(self, used_utc_us: Mapping[ApiKeyId, int]) -> None:
        del used_utc_us


class NoAliases:
    """Implements dispatch.names.NameStore: a model is called by its own name."""

    async def names_revision(self) -> int:
        return 1

    async def every_alias(self) -> Sequence[AliasRecord]:
        return []


class PlayedLink:
    """Implements bus.links.Link: to each RunAttempt it answers in the next turn with one whole answer."""

    connected = True

    def __init__(self) -> None:
        self._on_frames: Handler | None = None
        self._due: list[tuple[bytes, bytes]] = []

    def subscribe(self, subject: str, handler: Handler) -> bytes:
        if subject == subjects.frames_for(PLAYED):
            self._on_frames = handler
        return b"1"

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"") -> None:
        del reply
        if not subject.endswith(b".run"):
            return
        at = payload.index(b"req_")
        if not self._due:
            asyncio.get_running_loop().call_soon(self._answer)
        self._due.append((subject, payload[at : at + 32]))

    def _answer(self) -> None:
        due, self._due = self._due, []
        assert self._on_frames is not None
        for subject, attempt in due:
            key = NodeKey(subject.split(b".")[2].decode())
            self._on_frames(subjects.frames(key, PLAYED).encode(), ANSWER.replace(ATTEMPT, attempt))

    async def start(self, events: LinkEvents, timeout_s: float) -> None: ...

    async def replace(self, timeout_s: float) -> None: ...

    async def flush(self, timeout_s: float) -> None: ...

    async def close(self) -> None: ...


ATTEMPT = b"req_" + b"x" * 26 + b".1"
ANSWER = encode(
    Frames(
        frames=[
            Frame(
                attempt=ATTEMPT.decode(),
                number=0,
                events=[
                    Event(
                        data=b'{"choices":[' + b" " * 350 + b"]}",
                        text="token " * 10,
                        token_ids=list(range(10)),
                        tokens=10,
                        finish="length",
                        usage=TokenUsage(prompt_tokens=64, completion_tokens=10),
                    )
                ],
            )
        ]
    )
)


class Client(asyncio.Transport):
    """A connection without a socket: it asks again, in the next turn, as soon as it has its answer."""

    def __init__(self, request: bytes, done: "Counting") -> None:
        super().__init__()
        self.protocol: PanalHttpProtocol | None = None
        self._request = request
        self._done = done

    def write(self, data: Any) -> None:
        if not data:
            return
        if not data.startswith(b"HTTP/1.1 200"):
            if data.startswith(b"HTTP/1.1"):
                self._done.errors += 1
                asyncio.get_running_loop().call_later(0.1, self.ask)
            return
        self._done.count += 1
        if self._done.count >= self._done.wanted:
            self._done.reached.set()
        if self._done.running:
            asyncio.get_running_loop().call_soon(self.ask)

    def ask(self) -> None:
        assert self.protocol is not None
        self.protocol.data_received(self._request)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...


class Counting:
    """How many answers and errors came, and how many answers are wanted."""

    def __init__(self) -> None:
        self.count = 0
        self.wanted = 0
        self.errors = 0
        self.running = True
        self.reached = asyncio.Event()


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    clock = SystemClock()
    ids = IdSource(clock, os.urandom)
    secret, pepper = new_key(os.urandom), os.urandom(32)
    configure(program="gateway", level="info", file=folder / "gateway.log")
    spool = UsageSpool(folder / "spool")
    spool.open()
    done = Counting()
    protocol = await _gateway(clock, ids, secret, pepper, spool, options.replicas)
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "word " * 40}], "max_tokens": 10}
    ).encode()
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer %s\r\ncontent-length: %d\r\n\r\n%s" % (secret.encode(), len(body), body)
    )
    clients = [Client(request, done) for _ in range(CONNECTIONS)]
    for client in clients:
        client.protocol = protocol()
        client.protocol.connection_made(client)
        client.ask()
    await _until(done, 2000)
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_EACH_OBJECTS, 20, 50)
    batch = CONNECTIONS * PER_BATCH
    profile = cProfile.Profile() if options.profile else None
    if profile is not None:
        profile.enable()
    costs_us, calls = [], []
    for _ in range(options.batches):
        one_call_us = _call_us()
        costs_us.append(await _batch(done, batch))
        calls.append(costs_us[-1] / (one_call_us + _call_us()) * 2)
    done.running = False
    if profile is not None:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    await asyncio.sleep(0.1)
    spool.close()
    return {
        "us a request, lowest batch": round(min(costs_us), 1),
        "empty calls a request, median": round(statistics.median(calls)),
        "median batch": round(statistics.median(costs_us), 1),
        "highest batch": round(max(costs_us), 1),
        "requests": batch * len(costs_us),
        "errors": done.errors,
        "replicas": options.replicas,
    }


async def _until(done: Counting, more: int) -> None:
    done.wanted = done.count + more
    done.reached.clear()
    await done.reached.wait()


def _call_us() -> float:
    def nothing() -> None: ...

    begun_s = time.process_time()
    for _ in range(10_000):
        nothing()
    return (time.process_time() - begun_s) * 100


async def _batch(done: Counting, requests: int) -> float:
    begun_s, counted = time.process_time(), done.count
    await _until(done, requests)
    return (time.process_time() - begun_s) * 1e6 / (done.count - counted)


async def _gateway(
    clock: SystemClock, ids: IdSource, secret: str, pepper: bytes, spool: UsageSpool, replicas: int
) -> Any:
    """The parts as cli wires them; gives what makes the protocol of a connection."""
    directory = KeyDirectory(OneKey(_key_record(ids, secret, pepper)), pepper, clock)
    await directory.refresh()
    side = GatewaySide(PLAYED, PlayedLink(), PlayedLink())
    fleet = Fleet(clock)
    bookings = Bookings(
        fleet,
        clock,
        drawn,
        queue_length_max=1000,
        queue_wait_s_max=30.0,
        on_queue=lambda _length: None,
    )
    fleet.on_change = bookings.wake
    metrics: list[GatewayMetrics] = []
    observer = RequestObserver(spool, lambda: metrics[0], lambda: None)
    metrics.append(
        GatewayMetrics(
            CollectorRegistry(),
            in_flight=lambda: observer.in_flight,
            queued=lambda: 0,
            streams=lambda: observer.streams,
        )
    )
    metrics[0].models_known([MODEL])
    dispatcher = Dispatcher(side, bookings, clock, observer, Limits(), _allowed, lambda _tenant: "s" * 64)
    beats = asyncio.get_running_loop().create_task(_beat(fleet, ids, replicas))
    _keep.append(beats)
    await asyncio.sleep(0)
    await side.start(_Handlers(dispatcher))
    names = ServedNames(NoAliases(), fleet, clock)
    inference = Inference(dispatcher, directory, ids, clock, 600.0, model_of=names.model_of)
    app = App(inference, None, ids)  # type: ignore[arg-type]
    config = uvicorn.Config(
        app, lifespan="off", ws="none", access_log=False, log_config=None, server_header=False,
        date_header=False, proxy_headers=False, timeout_keep_alive=15,
    )  # fmt: skip
    config.load()
    state = ServerState()
    means = {
        "limits": HttpLimits(),
        "door": Door(CONNECTIONS * 2, CONNECTIONS * 2),
        "new_request_id": staticmethod(ids.request),
    }
    protocol = type("Protocol", (PanalHttpProtocol,), means)
    return lambda: protocol(config=config, server_state=state, app_state={})


_LETTERS = str.maketrans("0123456789", "ABCDEFGHIJ")
"""A key has no digit below 2."""

_keep: list[asyncio.Task[None]] = []


class _Handlers:
    """Implements bus.seam.GatewayHandlers as far as frames go."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.on_frames = dispatcher.on_frames

    def on_heartbeat(self, key: NodeKey, heartbeat: Heartbeat) -> None: ...

    def on_absent(self, key: NodeKey) -> None: ...

    def on_fleet_changed(self) -> None: ...

    def on_connection(self, connected: bool) -> None: ...


async def _beat(fleet: Fleet, ids: IdSource, replicas: int) -> None:
    facts = [
        NodeFacts(
            node_id=ids.node(),
            key=NodeKey(f"U{place:055d}".translate(_LETTERS)),
            name=f"node-{place}",
            node_class=NodeClass.DEDICATED,
            site="",
            country="",
            data_class=DataClass.INTERNAL,
            membership=Membership.ACTIVE,
        )
        for place in range(replicas)
    ]
    fleet.set_facts(facts)
    sequence = 0
    while True:
        for fact in facts:
            fleet.heard(fact.key, _heartbeat(fact.node_id, sequence))
        sequence += 1
        await asyncio.sleep(0.5)


def _heartbeat(node: NodeId, sequence: int) -> Heartbeat:
    report = ReplicaReport(
        replica="rep", model=MODEL, engine="played", routes=["chat"], slots=64,
        decode_s_per_token=0.02, prefill_tokens_per_s=5000.0,
    )  # fmt: skip
    return Heartbeat(node=node, instance="ins", sequence=sequence, state="available", replicas=[report])


def _key_record(ids: IdSource, secret: str, pepper: bytes) -> ApiKeyRecord:
    return ApiKeyRecord(
        key_id=ids.api_key(),
        tenant_id=DEFAULT_TENANT,
        project_id=DEFAULT_PROJECT,
        principal_id=ids.principal(),
        name="bench",
        digest=digest_of(pepper, secret.encode()),
        shown="",
        role=Role.USER,
        data_class=DataClass.INTERNAL,
        residency=frozenset(),
        created_utc_us=0,
    )


def _allowed(request: InferenceRequest, replica: ReplicaView) -> bool:
    return node_may_see(
        request.data_class,
        request.residency,
        node_data_class=replica.data_class,
        node_country=replica.country,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--profile", action="store_true", help="calls by function; it distorts the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="panal-path-") as folder:
        for name, value in uvloop.run(measure(options, Path(folder))).items():
            print(f"{name}: {value}")


if __name__ == "__main__":
    main()
