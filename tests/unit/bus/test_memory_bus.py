"""Faults on demand in the memory bus."""

import asyncio
import os

import pytest

from panal.bus.memory_bus import MemoryBroker
from panal.bus.nkeys import KeyKind, SigningKey
from panal.core.errors import BusError
from panal.core.ids import GatewayId, NodeKey
from panal.protocol.messages import Cancel, Frame, Heartbeat
from tests.support.recorders import GatewayRecorder, NodeRecorder

ONE = GatewayId("gw_one")
BEAT = Heartbeat(node="node_a", instance="ins_1", sequence=1, state="serving")


class Pair:
    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.key = NodeKey(SigningKey.create(KeyKind.USER, os.urandom).public)
        self.gateway, self.node = self.broker.gateway(ONE), self.broker.node(self.key)
        self.heard_gateway, self.heard_node = GatewayRecorder(), NodeRecorder()


@pytest.fixture
async def pair() -> Pair:
    pair = Pair()
    await pair.gateway.start(pair.heard_gateway)
    await pair.node.start(pair.heard_node)
    return pair


def frame(number: int) -> Frame:
    return Frame(attempt="a.1", number=number, events=[])


async def test_a_cut_node_is_told_and_neither_sends_nor_hears(pair: Pair) -> None:
    pair.broker.cut(pair.key)
    assert not pair.node.connected
    with pytest.raises(BusError):
        pair.node.send_frames(ONE, [frame(0)])
    pair.gateway.cancel(pair.key, Cancel(attempt="a.1", reason="x"))
    await asyncio.sleep(0)
    pair.broker.restore(pair.key)
    pair.node.heartbeat(BEAT)
    await pair.heard_gateway.until(lambda: len(pair.heard_gateway.heartbeats) == 1)
    assert pair.heard_node.messages == []
    assert pair.heard_node.connections == [True, False, True]
    assert pair.heard_gateway.connections == [True]


async def test_a_message_under_way_is_lost_when_the_receiver_is_cut(pair: Pair) -> None:
    pair.gateway.cancel(pair.key, Cancel(attempt="a.1", reason="x"))
    pair.broker.cut(pair.key)
    await asyncio.sleep(0)
    assert pair.heard_node.messages == []


async def test_dropped_frames_leave_a_gap(pair: Pair) -> None:
    pair.node.send_frames(ONE, [frame(0)])
    pair.broker.drop_frames(pair.key, 2)
    for number in range(1, 5):
        pair.node.send_frames(ONE, [frame(number)])
    await pair.heard_gateway.until(lambda: len(pair.heard_gateway.frames) == 3)
    assert [frame.number for _, frame in pair.heard_gateway.frames] == [0, 3, 4]
    assert pair.broker.lost == 2


async def test_losses_can_be_chosen_and_ended(pair: Pair) -> None:
    pair.broker.lose(lambda subject, _payload: subject.endswith(".heartbeat"))
    pair.node.heartbeat(BEAT)
    pair.broker.lose_nothing()
    pair.node.heartbeat(BEAT)
    await pair.heard_gateway.until(lambda: len(pair.heard_gateway.heartbeats) == 1)
    assert pair.broker.lost == 1


async def test_a_refused_node_hears_why(pair: Pair) -> None:
    pair.broker.refuse(pair.key, "revoked")
    assert pair.heard_node.refusals == ["revoked"]
    assert not pair.node.connected
    with pytest.raises(BusError):
        await pair.node.renew("credential")


async def test_nothing_starts_on_a_bus_that_is_cut(pair: Pair) -> None:
    other = pair.broker.gateway(GatewayId("gw_two"))
    pair.broker.cut("gw_two")
    with pytest.raises(BusError):
        await other.start(GatewayRecorder())
