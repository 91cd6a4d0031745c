"""Trace context and ids: what W3C's rules say, and nothing remembered."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.clock import ManualClock
from panal.core.ids import IdSource
from panal.telemetry.traces import Moments, context_for, read_traceparent, span_id_of, trace_id_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


def test_a_traceparent_is_read_with_its_flag() -> None:
    context = read_traceparent(f"00-{TRACE}-{SPAN}-01")
    assert context is not None
    assert (context.trace_id, context.parent_id, context.sampled) == (TRACE, SPAN, True)
    unsampled = read_traceparent(f"00-{TRACE}-{SPAN}-00")
    assert unsampled is not None
    assert not unsampled.sampled


def test_later_versions_may_say_more_and_their_other_flags_are_ignored() -> None:
    context = read_traceparent(f"01-{TRACE}-{SPAN}-03-more")
    assert context is not None
    assert context.sampled


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01\n",
        f" 00-{TRACE}-{SPAN}-01",
    ],
)
def test_what_breaks_the_rules_is_no_traceparent(text: str) -> None:
    assert read_traceparent(text) is None


@given(st.text(max_size=64))
def test_any_header_gives_a_context_and_it_travels_on_unchanged(text: str) -> None:
    context = context_for("req_1", text, 1.0)
    onward = read_traceparent(context.traceparent(span_id_of("req_1.1")))
    assert onward is not None
    assert (onward.trace_id, onward.sampled) == (context.trace_id, context.sampled)
    assert onward.parent_id == span_id_of("req_1.1")


@pytest.mark.parametrize("flag", [True, False])
def test_the_clients_word_on_recording_beats_the_ratio(flag: bool) -> None:
    for ratio in (0.0, 1.0):
        assert context_for("req_1", f"00-{TRACE}-{SPAN}-0{int(flag)}", ratio).sampled is flag


def test_the_ratio_is_kept_and_the_same_for_one_request_each_time() -> None:
    ids = IdSource(ManualClock(), os.urandom)
    names = [ids.request() for _ in range(4000)]
    chosen = [context_for(name, "", 0.25).sampled for name in names]
    assert chosen == [context_for(name, "", 0.25).sampled for name in names]
    assert 800 < sum(chosen) < 1200
    assert not any(context_for(name, "", 0.0).sampled for name in names)
    assert all(context_for(name, "", 1.0).sampled for name in names)


def test_a_trace_is_found_by_its_request_s_id() -> None:
    clock = ManualClock()
    request = IdSource(clock, lambda count: bytes(range(1, count + 1))).request()
    milliseconds = int(clock.utc_seconds() * 1000)
    assert trace_id_of(request) == f"{milliseconds:012x}" + bytes(range(1, 11)).hex()
    assert len(trace_id_of("of another shape")) == 32


def test_monotonic_moments_become_utc() -> None:
    clock = ManualClock(utc_seconds=1_800_000_000.0, monotonic_seconds=50.0)
    moments = Moments(clock)
    assert moments.utc_ns(moments.now_s - 2.0) == 1_799_999_998_000_000_000
