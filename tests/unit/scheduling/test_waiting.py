"""The queue: bounded, fair between tenants, in order within one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.errors import QueueFull
from panal.scheduling.waiting import WaitingRoom


def test_tenants_take_turns_and_order_within_one_is_kept() -> None:
    room: WaitingRoom[str] = WaitingRoom(10)
    for who in ("a1", "a2", "a3", "b1", "c1", "b2"):
        room.enter(who[0], who)
    assert room.in_order() == ["a1", "b1", "c1", "a2", "b2", "a3"]
    room.leave("a", "a1")
    room.served("a")
    assert room.in_order() == ["b1", "c1", "a2", "b2", "a3"]


def test_a_full_room_says_so_and_leaving_makes_room() -> None:
    room: WaitingRoom[int] = WaitingRoom(2)
    room.enter("a", 1)
    room.enter("b", 2)
    with pytest.raises(QueueFull) as full:
        room.enter("c", 3)
    assert full.value.retry_after_s
    room.leave("a", 1)
    room.leave("a", 1)
    room.enter("c", 3)
    assert len(room) == 2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=40))
def test_nobody_is_lost_or_doubled(entries: list[tuple[str, int]]) -> None:
    room: WaitingRoom[tuple[str, int, int]] = WaitingRoom(1000)
    inside = []
    for place, (tenant, number) in enumerate(entries):
        room.enter(tenant, (tenant, number, place))
        inside.append((tenant, number, place))
    assert sorted(room.in_order()) == sorted(inside)
    for who in inside[::2]:
        room.leave(who[0], who)
    assert sorted(room.in_order()) == sorted(inside[1::2])
    assert len(room) == len(inside[1::2])
