"""Merging two connections: every message once, in order."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.bus import handover
from panal.bus.handover import HandOver
from panal.bus.nats_parser import Handler


class Merge:
    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.overfull = 0
        handlers: dict[bytes, Handler] = {b"1": lambda _subject, payload: self.heard.append(payload)}
        self.hand_over = HandOver(handlers, self.count_overfull)
        self.old = self.hand_over.old_handlers()[b"1"]
        self.new = self.hand_over.new_handlers()[b"1"]

    def count_overfull(self) -> None:
        self.overfull += 1


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.randoms(use_true_random=False))
def test_an_overlap_of_any_size_is_delivered_once_and_in_order(
    before: int, both: int, after: int, random: Random
) -> None:
    """The old connection gets a beginning of the stream, the new one an end, in any interleaving."""
    stream = [b"%d" % number for number in range(before + both + after)]
    old, new = stream[: before + both], stream[before:]
    merge = Merge()
    steps = ["old"] * len(old) + ["new"] * random.randint(0, len(new))
    random.shuffle(steps)
    old_left, new_left = iter(old), iter(new)
    for step in steps:
        if step == "old":
            merge.old(b"s", next(old_left))
        else:
            merge.new(b"s", next(new_left))
    merge.hand_over.finish()
    for payload in new_left:
        merge.new(b"s", payload)
    assert merge.heard == stream


def test_empty_messages_always_pass() -> None:
    merge = Merge()
    merge.old(b"s", b"")
    merge.new(b"s", b"")
    merge.hand_over.finish()
    assert merge.heard == [b"", b""]


def test_equal_bytes_on_another_subject_are_another_message() -> None:
    merge = Merge()
    merge.old(b"s", b"x")
    merge.new(b"t", b"x")
    merge.hand_over.finish()
    assert merge.heard == [b"x", b"x"]


def test_nothing_is_held_against_later_messages_once_forgotten() -> None:
    merge = Merge()
    merge.old(b"s", b"x")
    merge.hand_over.finish()
    merge.hand_over.forget()
    merge.new(b"s", b"x")
    assert merge.heard == [b"x", b"x"]


def test_it_says_when_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "WAITING_BYTES_MAX", 10)
    merge = Merge()
    merge.new(b"s", b"12345678")
    assert merge.overfull == 0
    merge.new(b"s", b"abc")
    assert merge.overfull == 1
