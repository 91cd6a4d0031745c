"""Refusals are told soon, counted by the minute, and bounded whatever comes."""

from hypothesis import given
from hypothesis import strategies as st

from panal.core.clock import ManualClock
from panal.identity.refusals import (
    DIFFERENT_A_DAY_MAX,
    DIFFERENT_A_MINUTE_MAX,
    MANY,
    MINUTE_S,
    Refusal,
    RefusalCounts,
)
from tests.support.path import principal

JOIN = Refusal("node.join", "not_allowed", "192.0.2.7", message="This join token is not known here.")


def by(peer: str) -> Refusal:
    return Refusal("node.join", "not_allowed", peer)


def test_the_first_is_told_at_once_and_the_others_when_the_minute_is_over() -> None:
    clock = ManualClock()
    counts = RefusalCounts(clock)
    counts.note(JOIN)
    (first,) = counts.due()
    assert (first.refusal, first.count) == (JOIN, 1)
    for _ in range(9):
        counts.note(JOIN)
    assert counts.due() == []
    clock.advance(MINUTE_S)
    (rest,) = counts.due()
    assert (rest.refusal, rest.count) == (JOIN, 9)
    assert rest.last_utc_s == first.first_utc_s
    assert counts.due() == []


def test_what_differs_is_told_apart_and_a_network_of_ipv6_is_one() -> None:
    counts = RefusalCounts(ManualClock())
    user = principal()
    for peer in ("2001:db8::1", "2001:db8::2", "192.0.2.1"):
        counts.note(by(peer))
    counts.note(Refusal("api.call", "not_allowed", "192.0.2.1", "POST /api/v1/keys", user))
    told = {(row.refusal.action, row.refusal.peer): row.count for row in counts.due()}
    assert told == {
        ("node.join", "2001:db8::/64"): 2,
        ("node.join", "192.0.2.1"): 1,
        ("api.call", "192.0.2.1"): 1,
    }


def test_strangers_do_not_crowd_out_known_callers() -> None:
    counts = RefusalCounts(ManualClock())
    for number in range(10_000):
        counts.note(by(f"10.{number >> 8}.{number & 255}.1"))
    counts.note(Refusal("api.call", "not_allowed", "192.0.2.1", "POST /api/v1/keys", principal()))
    rows = counts.due()
    assert len(rows) == DIFFERENT_A_MINUTE_MAX + 2
    assert rows[0].refusal.action == "api.call"
    assert [row.count for row in rows if row.refusal.peer == MANY] == [10_000 - DIFFERENT_A_MINUTE_MAX]


def test_a_day_is_bounded_too_and_the_next_day_begins_anew() -> None:
    clock = ManualClock(monotonic_seconds=0.0)
    counts = RefusalCounts(clock)
    rows = 0
    for minute in range(24 * 60):
        for number in range(DIFFERENT_A_MINUTE_MAX):
            counts.note(by(f"10.{minute >> 8}.{minute & 255}.{number}"))
        rows += len(counts.due())
        clock.advance(MINUTE_S)
    assert DIFFERENT_A_DAY_MAX < rows <= DIFFERENT_A_DAY_MAX + 24 * 60
    counts.note(by("192.0.2.9"))
    assert [row.refusal.peer for row in counts.close()][-1] == "192.0.2.9"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["node.join", "key.use"]),
            st.integers(0, 60).map(lambda number: f"10.0.0.{number}"),
            st.floats(0.0, 90.0),
            st.booleans(),
        ),
        max_size=200,
    )
)
def test_every_refusal_is_told_exactly_once_in_some_row(said: list[tuple[str, str, float, bool]]) -> None:
    clock = ManualClock()
    counts = RefusalCounts(clock)
    told = 0
    for action, peer, pause_s, look in said:
        counts.note(Refusal(action, "not_allowed", peer))
        if look:
            told += sum(row.count for row in counts.due())
        clock.advance(pause_s)
    told += sum(row.count for row in counts.close())
    assert told == len(said)
    assert counts.close() == []
