"""What every bus promises to its three sides, whatever carries it (panal.bus.seam)."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import pytest

from panal.bus.memory_bus import MemoryBroker
from panal.bus.nkeys import KeyKind, SigningKey
from panal.bus.sides import ControllerSide, GatewaySide, NodeSide
from panal.core.errors import BusError, ProtocolError
from panal.core.ids import GatewayId, NodeKey
from panal.protocol import subjects
from panal.protocol.messages import (
    MESSAGE_BYTES_MAX,
    Acknowledge,
    BodyPart,
    Cancel,
    Event,
    Frame,
    Heartbeat,
    Instruction,
    Present,
    Report,
)
from tests.support.nats_installation import NatsInstallation
from tests.support.recorders import ControllerRecorder, GatewayRecorder, NodeRecorder, run_attempt

ONE = GatewayId("gw_one")
TWO = GatewayId("gw_two")


class Bus(Protocol):
    def gateway(self, gateway: GatewayId) -> GatewaySide: ...

    def controller(self) -> ControllerSide: ...

    def node(self, key: SigningKey) -> NodeSide: ...


class MemoryBus:
    def __init__(self) -> None:
        self.broker = MemoryBroker()

    def gateway(self, gateway: GatewayId) -> GatewaySide:
        return self.broker.gateway(gateway)

    def controller(self) -> ControllerSide:
        return self.broker.controller()

    def node(self, key: SigningKey) -> NodeSide:
        return self.broker.node(NodeKey(key.public))


@pytest.fixture(params=["memory", "nats with tls", "nats on loopback"])
async def bus(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bus]:
    if request.param == "memory":
        yield MemoryBus()
        return
    installation = NatsInstallation(tmp_path, encrypted=request.param == "nats with tls")
    await installation.server.start()
    yield installation
    await installation.server.stop()


class Fleet:
    """Two gateways, a controller and two nodes on one bus."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.one, self.two = bus.gateway(ONE), bus.gateway(TWO)
        self.controller = bus.controller()
        self.keys = [SigningKey.create(KeyKind.USER, os.urandom) for _ in range(2)]
        self.alpha, self.beta = (bus.node(key) for key in self.keys)
        self.heard_one, self.heard_two = GatewayRecorder(), GatewayRecorder()
        self.heard_controller = ControllerRecorder()
        self.heard_alpha, self.heard_beta = NodeRecorder(), NodeRecorder()


@pytest.fixture
async def fleet(bus: Bus) -> AsyncIterator[Fleet]:
    fleet = Fleet(bus)
    async with AsyncExitStack() as stack:
        pairs: list[tuple[Callable[[], Awaitable[None]], Callable[[], Awaitable[None]]]] = [
            (lambda: fleet.one.start(fleet.heard_one), fleet.one.close),
            (lambda: fleet.two.start(fleet.heard_two), fleet.two.close),
            (lambda: fleet.controller.start(fleet.heard_controller), fleet.controller.close),
            (lambda: fleet.alpha.start(fleet.heard_alpha), fleet.alpha.close),
            (lambda: fleet.beta.start(fleet.heard_beta), fleet.beta.close),
        ]
        for start, close in pairs:
            await start()
            stack.push_async_callback(close)
        yield fleet


def heartbeat(sequence: int) -> Heartbeat:
    return Heartbeat(node="node_a", instance="ins_1", sequence=sequence, state="serving")


async def test_an_attempt_reaches_its_node_alone_with_its_parts_in_order(fleet: Fleet) -> None:
    attempt = run_attempt(body=b"x" * 200_000, parts=3)
    parts = [BodyPart(attempt=attempt.attempt, number=number, body=b"y" * 200_000) for number in (2, 3)]
    fleet.one.run(fleet.alpha.key, attempt, parts)
    fleet.one.cancel(fleet.beta.key, Cancel(attempt="other.1", reason="test"))
    await fleet.heard_alpha.until(lambda: len(fleet.heard_alpha.messages) == 3)
    await fleet.heard_beta.until(lambda: len(fleet.heard_beta.messages) == 1)
    assert fleet.heard_alpha.messages == [attempt, *parts]
    assert fleet.heard_beta.messages == [Cancel(attempt="other.1", reason="test")]


async def test_a_node_that_is_there_is_not_called_absent(fleet: Fleet) -> None:
    fleet.one.probe(fleet.alpha.key)
    fleet.one.cancel(fleet.alpha.key, Cancel(attempt="a.1", reason="after the probe"))
    await fleet.heard_alpha.until(lambda: len(fleet.heard_alpha.messages) == 1)
    nobody = NodeKey(SigningKey.create(KeyKind.USER, os.urandom).public)
    fleet.one.probe(nobody)
    await fleet.heard_one.until(lambda: bool(fleet.heard_one.absent))
    assert fleet.heard_one.absent == [nobody]


async def test_the_gateway_that_asked_hears_at_once_that_a_node_left(fleet: Fleet) -> None:
    await fleet.alpha.close()
    async with asyncio.timeout(10):
        while not fleet.heard_one.absent:  # the server may still be at the end of the node's connection
            fleet.one.probe(fleet.alpha.key)
            await asyncio.sleep(0.01)
    await fleet.one.flush(5.0)
    heard = len(fleet.heard_one.absent)
    fleet.one.run(fleet.alpha.key, run_attempt())
    await fleet.heard_one.until(lambda: len(fleet.heard_one.absent) == heard + 1)
    assert set(fleet.heard_one.absent) == {fleet.alpha.key}
    assert fleet.heard_two.absent == []
    assert fleet.one.bad_messages == 0


async def test_acknowledgements_and_cancels_arrive_in_the_order_of_sending(fleet: Fleet) -> None:
    sent = [Acknowledge(attempt="a.1", data_bytes=size) for size in range(200)]
    for acknowledgement in sent:
        fleet.one.acknowledge(fleet.alpha.key, acknowledgement)
    fleet.one.cancel(fleet.alpha.key, Cancel(attempt="a.1", reason="gone"))
    await fleet.heard_alpha.until(lambda: len(fleet.heard_alpha.messages) == 201)
    assert fleet.heard_alpha.messages == [*sent, Cancel(attempt="a.1", reason="gone")]


async def test_frames_reach_the_named_gateway_alone_with_the_key_of_their_sender(fleet: Fleet) -> None:
    frames = [Frame(attempt=f"a{number}.1", number=0, events=[Event(data=b"hi")]) for number in range(3)]
    fleet.alpha.send_frames(ONE, frames)
    fleet.beta.send_frames(TWO, frames[:1])
    await fleet.heard_one.until(lambda: len(fleet.heard_one.frames) == 3)
    await fleet.heard_two.until(lambda: len(fleet.heard_two.frames) == 1)
    assert fleet.heard_one.frames == [(fleet.alpha.key, frame) for frame in frames]
    assert fleet.heard_one.frame_messages == [3]
    assert fleet.heard_two.frames == [(fleet.beta.key, frames[0])]


async def test_many_frames_arrive_once_and_in_order(fleet: Fleet) -> None:
    for number in range(2000):
        fleet.alpha.send_frames(ONE, [Frame(attempt="a.1", number=number, events=[Event(data=b"z" * 100)])])
    await fleet.heard_one.until(lambda: len(fleet.heard_one.frames) >= 2000)
    assert [frame.number for _, frame in fleet.heard_one.frames] == list(range(2000))


async def test_frames_that_are_too_large_together_travel_in_several_messages(fleet: Fleet) -> None:
    half = MESSAGE_BYTES_MAX * 2 // 3
    frames = [Frame(attempt=f"a{n}.1", number=0, events=[Event(data=b"x" * half)]) for n in range(5)]
    fleet.alpha.send_frames(ONE, frames)
    await fleet.heard_one.until(lambda: len(fleet.heard_one.frames) == 5)
    assert [frame for _, frame in fleet.heard_one.frames] == frames
    assert len(fleet.heard_one.frame_messages) > 1


async def test_a_single_frame_that_is_too_large_is_refused_at_once(fleet: Fleet) -> None:
    frame = Frame(attempt="a.1", number=0, events=[Event(data=b"x" * 2 * MESSAGE_BYTES_MAX)])
    with pytest.raises(ProtocolError):
        fleet.alpha.send_frames(ONE, [frame])


async def test_a_gateway_says_to_one_node_that_it_is_there_in_order_with_its_attempts(fleet: Fleet) -> None:
    attempt = run_attempt()
    present = Present(gateway=ONE, instance="ins_1", attempts=[attempt.attempt])
    fleet.one.run(fleet.alpha.key, attempt)
    fleet.one.present(fleet.alpha.key, present)
    await fleet.heard_alpha.until(lambda: len(fleet.heard_alpha.messages) == 2)
    assert fleet.heard_alpha.messages == [attempt, present]
    assert fleet.heard_beta.messages == []


async def test_after_a_flush_all_that_was_said_before_has_been_heard(fleet: Fleet) -> None:
    for number in range(50):
        fleet.alpha.heartbeat(heartbeat(number))
        fleet.alpha.send_frames(ONE, [Frame(attempt="a.1", number=number, events=[])])
    assert await fleet.alpha.answers(10.0)
    fleet.alpha.report(Report(node="node_a", instance="ins_1"))
    await fleet.heard_controller.until(lambda: len(fleet.heard_controller.reports) == 1)
    await fleet.one.flush(10.0)
    assert len(fleet.heard_one.frames) == len(fleet.heard_one.heartbeats) == 50


async def test_a_heartbeat_reaches_every_gateway_and_the_controller(fleet: Fleet) -> None:
    fleet.alpha.heartbeat(heartbeat(1))
    for heard in (fleet.heard_one, fleet.heard_two, fleet.heard_controller):
        await heard.until(lambda heard=heard: len(heard.heartbeats) == 1)  # type: ignore[misc]
        assert heard.heartbeats == [(fleet.alpha.key, heartbeat(1))]


async def test_a_report_reaches_the_controller(fleet: Fleet) -> None:
    report = Report(node="node_a", instance="ins_1", renew=True, facts={"gpu": "none"})
    fleet.beta.report(report)
    await fleet.heard_controller.until(lambda: len(fleet.heard_controller.reports) == 1)
    assert fleet.heard_controller.reports == [(fleet.beta.key, report)]


async def test_an_instruction_reaches_its_node(fleet: Fleet) -> None:
    instruction = Instruction(id="ins_7", verb="drain", reason="update")
    fleet.controller.instruct(fleet.beta.key, instruction)
    await fleet.heard_beta.until(lambda: len(fleet.heard_beta.messages) == 1)
    assert fleet.heard_beta.messages == [instruction]
    assert fleet.heard_alpha.messages == []


async def test_every_change_of_the_fleet_is_told_to_every_gateway(fleet: Fleet) -> None:
    fleet.controller.fleet_changed()
    fleet.controller.fleet_changed()
    await fleet.heard_one.until(lambda: fleet.heard_one.fleet_changes == 2)
    await fleet.heard_two.until(lambda: fleet.heard_two.fleet_changes == 2)


async def test_each_side_is_told_once_that_it_is_connected(fleet: Fleet) -> None:
    assert fleet.one.connected
    assert fleet.alpha.connected
    assert fleet.heard_one.connections == [True]
    assert fleet.heard_alpha.connections == [True]


async def test_bytes_that_are_not_the_protocol_are_counted_and_do_no_harm(fleet: Fleet) -> None:
    data, news = fleet.alpha._links.data, fleet.alpha._links.news
    data.publish(subjects.frames(fleet.alpha.key, ONE).encode(), b"\xc1 not MessagePack")
    news.publish(subjects.heartbeat(fleet.alpha.key).encode(), b"")
    fleet.one._publish(subjects.down(fleet.alpha.key, subjects.RUN).encode(), b"\x80")
    fleet.alpha.send_frames(ONE, [Frame(attempt="a.1", number=0, events=[])])
    fleet.alpha.heartbeat(heartbeat(2))
    fleet.one.cancel(fleet.alpha.key, Cancel(attempt="a.1", reason="x"))
    await fleet.heard_one.until(
        lambda: len(fleet.heard_one.frames) == 1 and len(fleet.heard_one.heartbeats) == 1
    )
    await fleet.heard_alpha.until(lambda: len(fleet.heard_alpha.messages) == 1)
    assert fleet.one.bad_messages == 2
    assert fleet.alpha.bad_messages == 1


async def test_a_node_goes_over_to_a_fresh_credential_and_works_on(fleet: Fleet) -> None:
    credential = ""
    if isinstance(fleet.bus, NatsInstallation):
        credential = fleet.bus.credential(fleet.keys[0], 1800)
    await fleet.alpha.renew(credential)
    fleet.one.cancel(fleet.alpha.key, Cancel(attempt="a.1", reason="x"))
    fleet.alpha.send_frames(ONE, [Frame(attempt="a.1", number=0, events=[])])
    await fleet.heard_alpha.until(lambda: len(fleet.heard_alpha.messages) == 1)
    await fleet.heard_one.until(lambda: len(fleet.heard_one.frames) == 1)
    assert fleet.heard_alpha.connections == [True]


async def test_a_side_that_is_not_connected_says_so(bus: Bus) -> None:
    gateway = bus.gateway(ONE)
    key = NodeKey(SigningKey.create(KeyKind.USER, os.urandom).public)
    assert not gateway.connected
    with pytest.raises(BusError):
        gateway.cancel(key, Cancel(attempt="a.1", reason="x"))


async def test_a_closed_side_sends_nothing_and_hears_nothing(fleet: Fleet) -> None:
    await fleet.alpha.close()
    with pytest.raises(BusError):
        fleet.alpha.heartbeat(heartbeat(1))
    fleet.one.cancel(fleet.alpha.key, Cancel(attempt="a.1", reason="x"))
    fleet.one.cancel(fleet.beta.key, Cancel(attempt="a.1", reason="x"))
    await fleet.heard_beta.until(lambda: len(fleet.heard_beta.messages) == 1)
    assert fleet.heard_alpha.messages == []


async def test_closing_twice_is_no_fault(fleet: Fleet) -> None:
    await fleet.one.close()
    await fleet.one.close()
    assert not fleet.one.connected


async def test_a_subject_never_takes_a_key_that_is_none(fleet: Fleet) -> None:
    with pytest.raises(ProtocolError):
        fleet.one.cancel(NodeKey("*"), Cancel(attempt="a.1", reason="x"))
