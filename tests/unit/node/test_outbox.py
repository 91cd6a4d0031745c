"""Frames: numbers, one message a turn, limits on what is under way."""

import asyncio
from collections.abc import Sequence

import pytest

from panal.core.errors import BusError
from panal.core.ids import GatewayId
from panal.node.outbox import DATA_BYTES_MAX, Outbox, ReaderStalled, merge
from panal.protocol.codec import encode
from panal.protocol.messages import (
    MESSAGE_BYTES_MAX,
    UNACKNOWLEDGED_BYTES_MAX,
    Event,
    Frame,
    Frames,
    TokenUsage,
    WireError,
)

A, B = GatewayId("gw_a"), GatewayId("gw_b")


class Wire:
    """Takes messages, or refuses them."""

    def __init__(self) -> None:
        self.sent: list[tuple[GatewayId, list[Frame]]] = []
        self.down = False

    def __call__(self, gateway: GatewayId, frames: Sequence[Frame]) -> None:
        if self.down:
            raise BusError("down")
        assert len(encode(Frames(frames=list(frames)))) <= MESSAGE_BYTES_MAX + 64 * 1024
        self.sent.append((gateway, list(frames)))

    def data(self, attempt: str) -> bytes:
        return b"".join(
            event.data
            for _, frames in self.sent
            for frame in frames
            if frame.attempt == attempt
            for event in frame.events
        )

    def numbers(self, attempt: str) -> list[int]:
        return [frame.number for _, frames in self.sent for frame in frames if frame.attempt == attempt]


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def outbox(wire: Wire) -> Outbox:
    return Outbox(wire, stall_s_max=0.05)


async def test_everything_of_one_turn_goes_in_one_message_for_each_gateway(
    outbox: Outbox, wire: Wire
) -> None:
    lanes = [outbox.lane("a1", A), outbox.lane("a2", A), outbox.lane("b1", B)]
    for lane in lanes:
        lane.put(Event(data=b"x", text="x", tokens=1, token_ids=[1]))
        lane.put(Event(data=b"y", text="y", tokens=1, token_ids=[2]))
    assert wire.sent == []
    await asyncio.sleep(0)
    assert [(gateway, [frame.attempt for frame in frames]) for gateway, frames in wire.sent] == [
        (A, ["a1", "a2"]),
        (B, ["b1"]),
    ]
    [event] = wire.sent[0][1][0].events
    assert (event.data, event.text, event.tokens, event.token_ids) == (b"xy", "xy", 2, [1, 2])


async def test_frames_are_numbered_from_zero_without_a_gap(outbox: Outbox, wire: Wire) -> None:
    lane = outbox.lane("a1", A)
    for _ in range(5):
        lane.put(Event(data=b"x"))
        await asyncio.sleep(0)
    assert wire.numbers("a1") == [0, 1, 2, 3, 4]


async def test_no_more_than_the_limit_is_under_way_and_the_rest_follows_acknowledgements(
    outbox: Outbox, wire: Wire
) -> None:
    lane = outbox.lane("a1", A)
    data = bytes(range(256)) * 4096
    lane.put(Event(data=data, finish="stop"))
    await asyncio.sleep(0)
    assert lane.full
    taken = 0
    while len(wire.data("a1")) < len(data):
        assert len(wire.data("a1")) - taken <= UNACKNOWLEDGED_BYTES_MAX
        taken = len(wire.data("a1"))
        lane.acknowledge(taken)
        await asyncio.sleep(0)
    assert wire.data("a1") == data
    assert wire.numbers("a1") == list(range(len(wire.numbers("a1"))))
    last = wire.sent[-1][1][-1].events[-1]
    assert last.finish == "stop"
    assert all(len(e.data) <= DATA_BYTES_MAX for _, frames in wire.sent for f in frames for e in f.events)


async def test_a_full_lane_has_room_again_after_an_acknowledgement(outbox: Outbox) -> None:
    lane = outbox.lane("a1", A)
    lane.put(Event(data=b"x" * UNACKNOWLEDGED_BYTES_MAX))
    waiting = asyncio.create_task(lane.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    lane.acknowledge(UNACKNOWLEDGED_BYTES_MAX // 2)
    async with asyncio.timeout(5):
        await waiting


async def test_a_reader_who_takes_nothing_ends_the_wait(outbox: Outbox) -> None:
    lane = outbox.lane("a1", A)
    lane.put(Event(data=b"x" * (UNACKNOWLEDGED_BYTES_MAX + 1)))
    with pytest.raises(ReaderStalled):
        await lane.room()
    with pytest.raises(ReaderStalled):
        await lane.empty()


async def test_an_acknowledgement_of_more_than_was_sent_counts_for_nothing(outbox: Outbox) -> None:
    lane = outbox.lane("a1", A)
    lane.put(Event(data=b"x" * UNACKNOWLEDGED_BYTES_MAX))
    await asyncio.sleep(0)
    lane.acknowledge(10 * UNACKNOWLEDGED_BYTES_MAX)
    assert lane.full


async def test_what_the_bus_does_not_take_goes_out_later_in_order(outbox: Outbox, wire: Wire) -> None:
    lane = outbox.lane("a1", A)
    wire.down = True
    lane.put(Event(data=b"1"))
    await asyncio.sleep(0)
    lane.put(Event(data=b"2"))
    await asyncio.sleep(0)
    wire.down = False
    outbox.flush()
    assert wire.data("a1") == b"12"
    assert wire.numbers("a1") == [0]


async def test_many_lanes_are_spread_over_messages_of_a_bounded_size(outbox: Outbox, wire: Wire) -> None:
    lanes = [outbox.lane(f"a{n}", A) for n in range(20)]
    for lane in lanes:
        lane.put(Event(data=b"x" * 60_000))
    await asyncio.sleep(0)
    assert len(wire.sent) >= 5
    assert all(len(wire.data(lane.attempt)) == 60_000 for lane in lanes)


async def test_an_error_may_overtake_what_waits(outbox: Outbox, wire: Wire) -> None:
    lane = outbox.lane("a1", A)
    lane.put(Event(data=b"x" * 3 * UNACKNOWLEDGED_BYTES_MAX))
    await asyncio.sleep(0)
    lane.put_instead(Event(error=WireError(kind="leaving", message="bye")))
    await asyncio.sleep(0)
    assert wire.sent[-1][1][-1].events[-1].error is not None
    assert not lane.queue


async def test_a_dropped_lane_sends_nothing(outbox: Outbox, wire: Wire) -> None:
    lane = outbox.lane("a1", A)
    lane.put(Event(data=b"x"))
    lane.drop()
    await asyncio.sleep(0)
    assert wire.sent == []


def test_events_that_end_or_warn_stay_apart() -> None:
    assert not merge(Event(data=b"x"), Event(leaving=True))
    assert not merge(Event(leaving=True), Event(data=b"x"))
    assert not merge(Event(data=b"x"), Event(error=WireError(kind="failed", message="")))
    assert not merge(Event(data=b"x", finish="stop"), Event(data=b"x"))


def test_merging_keeps_ids_only_where_all_are_known() -> None:
    event = Event(text="a", token_ids=[1], tokens=1)
    assert merge(event, Event(text="b", token_ids=None, tokens=1))
    assert (event.text, event.token_ids, event.tokens) == ("ab", None, 2)
    event = Event(role=True)
    assert merge(event, Event(text="b", token_ids=[2], tokens=1, usage=TokenUsage(prompt_tokens=1)))
    assert (event.token_ids, event.role, event.usage) == ([2], True, TokenUsage(prompt_tokens=1))
    assert merge(event, Event(data=b"x", finish="stop"))
    assert (event.token_ids, event.finish) == ([2], "stop")
