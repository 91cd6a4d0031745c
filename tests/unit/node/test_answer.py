"""The writer of answers: streams, resumes at every token, stop strings, holding back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.requests import Route
from panal.node.answer import AnswerWriter
from panal.node.engines.engine import Delta
from panal.protocol.messages import TokenUsage
from tests.support.node_gateway import chunks_of, text_of
from tests.unit.node.answers import (
    PROMPT_TOKENS,
    data_of,
    deltas_of,
    emitted_of,
    objects_of,
    plan,
    write_all,
)

HARD = "Zürich 日本語 👩‍👩‍👧‍👦 שלום e\u0301 🏔️ end"


def roles(data: bytes) -> int:
    return sum("role" in choice.get("delta", {}) for chunk in objects_of(data) for choice in chunk["choices"])


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
def test_an_unbroken_stream_is_complete_and_in_order(route: Route) -> None:
    writer = AnswerWriter(plan(route=route))
    events = write_all(writer, deltas_of(HARD, route=route))
    events.append(writer.end())
    chunks = chunks_of(data_of(events))
    assert text_of(data_of(events)) == HARD
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"]["total_tokens"] == PROMPT_TOKENS + len(HARD.encode())
    assert [choice["finish_reason"] for choice in chunks[-3]["choices"]] == ["stop"]
    assert roles(data_of(events)) == (1 if route is Route.CHAT else 0)
    assert events[-1].finish == "stop"
    assert not any("usage" in chunk for chunk in chunks[:-2])


def test_usage_is_not_shown_to_a_client_who_did_not_ask_but_told_to_the_gateway() -> None:
    writer = AnswerWriter(plan(include_usage=False))
    events = [*write_all(writer, deltas_of("one two")), writer.end()]
    assert not any("usage" in chunk or chunk["choices"] == [] for chunk in objects_of(data_of(events)))
    assert events[-1].usage == TokenUsage(prompt_tokens=PROMPT_TOKENS, completion_tokens=7)


@pytest.mark.parametrize("cut", range(len(HARD.encode()) + 2))
def test_cut_at_every_token_the_text_is_the_same(cut: int) -> None:
    first = write_all(AnswerWriter(plan()), deltas_of(HARD)[:cut])
    so_far = emitted_of(first)
    assert so_far.token_ids == list(so_far.text.encode())
    writer = AnswerWriter(plan(emitted=so_far))
    rest = write_all(writer, deltas_of(HARD, done=len(so_far.text.encode())))
    rest.append(writer.end())
    data = data_of(first) + data_of(rest)
    assert text_of(data) == HARD
    assert roles(data) == 1
    assert chunks_of(data).count("[DONE]") == 1
    assert rest[-1].usage == TokenUsage(prompt_tokens=PROMPT_TOKENS, completion_tokens=len(HARD.encode()))


@given(st.text(max_size=40), st.lists(st.integers(0, 200), max_size=4), st.booleans())
def test_any_number_of_cuts_gives_the_same_text_and_usage(text: str, cuts: list[int], ids: bool) -> None:
    text = text.encode("utf-8", "ignore").decode()
    emitted = None
    data = b""
    for cut in cuts:
        done = len(emitted.text.encode()) if emitted else 0
        events = write_all(
            AnswerWriter(plan(emitted=emitted)), deltas_of(text, done=done, ids=ids, finish=None)[:cut]
        )
        data += data_of(events)
        emitted = emitted_of(events, emitted)
        assert text_of(data) == emitted.text
    done = len(emitted.text.encode()) if emitted else 0
    writer = AnswerWriter(plan(emitted=emitted))
    events = [*write_all(writer, deltas_of(text, done=done, ids=ids)), writer.end()]
    data += data_of(events)
    assert text_of(data) == text
    assert "\ufffd" not in text_of(data) or "\ufffd" in text
    assert roles(data) == 1
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == len(text.encode())


@given(st.text(alphabet="ab \né", max_size=40), st.integers(0, 60))
def test_a_stop_string_ends_the_answer_wherever_it_is_cut(text: str, cut: int) -> None:
    stops = ("\n", "ab a", "é")
    first_writer = AnswerWriter(plan(stops=stops))
    first = write_all(first_writer, deltas_of(text, finish=None)[:cut])
    if first_writer.done:
        events = [*first, first_writer.end()]
    else:
        so_far = emitted_of(first)
        writer = AnswerWriter(plan(stops=stops, emitted=so_far))
        rest = write_all(writer, deltas_of(text, done=len(so_far.text.encode())))
        events = [*first, *rest, writer.end()]
    places = [text.find(stop) for stop in stops if stop in text]
    expected = text[: min(places)] if places else text
    assert text_of(data_of(events)) == expected
    assert events[-1].finish == "stop"
    assert chunks_of(data_of(events)).count("[DONE]") == 1


def test_a_stop_string_cuts_inside_a_token() -> None:
    deltas = []
    for token, piece in enumerate(["one", " two.STO", "P three"]):
        choice: Any = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
        deltas.append(Delta(chunk={"choices": [choice]}, text=piece, token_ids=[token], tokens=1))
    writer = AnswerWriter(plan(stops=("STOP",)))
    events = [*write_all(writer, deltas), writer.end()]
    assert writer.done
    assert text_of(data_of(events)) == "one two."


def test_a_stream_without_a_finish_is_an_error_and_never_done() -> None:
    writer = AnswerWriter(plan())
    events = [*write_all(writer, deltas_of("one two", finish=None)), writer.end()]
    assert b"[DONE]" not in data_of(events)
    assert events[-1].error is not None and events[-1].error.kind == "failed"
    assert events[-1].finish is None


def test_a_second_choice_without_a_finish_is_an_error_too() -> None:
    writer = AnswerWriter(plan())
    deltas = deltas_of("one", finish=None)
    deltas.append(Delta(chunk={"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": None}]}))
    deltas += deltas_of("one")[-2:]
    events = [*write_all(writer, deltas), writer.end()]
    assert events[-1].error is not None


def test_every_choice_gets_one_role_and_passes() -> None:
    writer = AnswerWriter(plan())
    deltas: list[Delta] = []
    for index in (0, 1):
        choice: Any = {"index": index, "delta": {"content": f"c{index}"}, "finish_reason": None}
        deltas.append(Delta(chunk={"choices": [choice]}, text="c0" if index == 0 else "", tokens=1))
    for index in (0, 1):
        choice = {"index": index, "delta": {}, "finish_reason": "stop"}
        deltas.append(Delta(chunk={"choices": [choice]}, finish="stop" if index == 0 else None))
    events = [*write_all(writer, deltas), writer.end()]
    assert roles(data_of(events)) == 2
    assert events[-1].finish == "stop"


def test_ids_go_out_only_with_the_text_that_they_end() -> None:
    writer = AnswerWriter(plan())
    events = write_all(writer, deltas_of("é日", finish=None))
    assert [(event.text, event.token_ids, event.tokens) for event in events if event.text] == [
        ("é", list("é".encode()), 2),
        ("日", list("日".encode()), 3),
    ]


def test_an_unknown_id_makes_all_later_ids_unknown() -> None:
    deltas = deltas_of("abc")
    deltas[2].token_ids = None
    events = write_all(AnswerWriter(plan()), deltas)
    assert [event.token_ids for event in events if event.text] == [[97], None, None]


def test_anything_but_text_is_marked_and_passed_on_untouched() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    choice: Any = {"index": 0, "delta": {"content": None, "tool_calls": [call]}, "finish_reason": None}
    writer = AnswerWriter(plan())
    events = write_all(writer, [Delta(chunk={"choices": [choice]}, opaque=True, tokens=1)])
    assert events[0].opaque
    assert objects_of(events[0].data)[-1]["choices"][0]["delta"] == {"content": None, "tool_calls": [call]}


def test_the_first_event_tells_the_prompts_tokens_when_they_are_known() -> None:
    deltas = deltas_of("abc")
    deltas[0].usage = TokenUsage(prompt_tokens=9)
    events = write_all(AnswerWriter(plan()), deltas)
    assert events[0].usage is not None and events[0].usage.prompt_tokens == 9
    assert all(event.usage is None for event in events[1:])


def test_a_held_answer_goes_out_in_one_piece_at_its_end() -> None:
    writer = AnswerWriter(plan(hold=True))
    events = write_all(writer, deltas_of(HARD))
    assert data_of(events) == b"" and all(not event.text for event in events)
    last = writer.end()
    assert text_of(last.data) == HARD
    assert chunks_of(last.data)[-1] == "[DONE]"


def test_a_held_answer_shows_that_it_lives_and_what_was_made() -> None:
    """If its node is lost, the tokens stand in the node's record all the same."""
    writer = AnswerWriter(plan(hold=True))
    events = write_all(writer, deltas_of("a" * 200, finish=None))
    assert 2 <= len(events) <= 5
    assert all(not event.data and not event.text and event.token_ids is None for event in events)
    made = sum(event.tokens for event in events)
    assert 100 < made <= 200
    write_all(writer, deltas_of("b" * 10))
    assert made + writer.end().tokens == 210


def test_behind_text_that_was_sent_a_held_call_tells_no_tokens() -> None:
    """They would be counted as the text's, and the call be made anew after a cut."""
    writer = AnswerWriter(plan(tools_whole=True))
    write_all(writer, deltas_of("let me see", finish=None))
    during = write_all(writer, [call_delta(letter) for letter in "abcdef" * 20])
    assert during and not any(event.tokens for event in during)


def test_a_held_answer_that_grows_too_large_goes_out_and_is_marked() -> None:
    writer = AnswerWriter(plan(hold=True))
    piece = "x" * 100_000
    choice: Any = {"index": 0, "delta": {"content": piece}, "finish_reason": None}
    events = []
    for step in range(plan().hold_bytes_max // 100_000 + 2):
        event = writer.write(Delta(chunk={"choices": [dict(choice)]}, text=piece, tokens=1), step * 0.001)
        events += [event] if event else []
    assert events[0].opaque and len(events[0].data) > plan().hold_bytes_max


def call_delta(arguments: str) -> Delta:
    call: Any = {"index": 0, "function": {"arguments": arguments}}
    choice: Any = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}
    return Delta(chunk={"choices": [choice]}, tokens=1, opaque=True)


def test_a_tool_call_that_is_sent_whole_waits_for_the_end_and_text_before_it_does_not() -> None:
    writer = AnswerWriter(plan(tools_whole=True))
    before = write_all(writer, deltas_of("let me see", finish=None))
    assert text_of(data_of(before)) == "let me see"
    during = write_all(writer, [call_delta(letter) for letter in "abcdef" * 20])
    assert during and not any(event.data or event.opaque for event in during)
    writer.write(Delta(chunk={"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}), 99.0)
    last = writer.end()
    assert last.finish == "tool_calls" and last.opaque
    chunks = [chunk for chunk in chunks_of(last.data) if chunk != "[DONE]" and chunk["choices"]]
    calls = [chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks]
    assert "".join(call[0]["function"]["arguments"] for call in calls if call) == "abcdef" * 20


def test_a_tool_call_too_large_to_be_held_goes_out_and_is_marked() -> None:
    writer = AnswerWriter(plan(tools_whole=True, hold_bytes_max=1000))
    events = write_all(writer, [call_delta("x" * 100) for _ in range(30)])
    data = [event for event in events if event.data]
    assert data[0].opaque and len(data[0].data) > 1000
    assert len(data) > 5


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_engine_that_gives_up_never_finishes_an_answer(reason: str) -> None:
    writer = AnswerWriter(plan())
    sent = data_of(write_all(writer, deltas_of("abc", finish=reason)))
    last = writer.end()
    assert last.error is not None and last.error.kind == "failed"
    assert reason.encode() not in sent
    assert not last.data


def test_the_finish_waits_for_the_end() -> None:
    """A cut between the finish and the end must not leave two of them."""
    writer = AnswerWriter(plan())
    sent = data_of(write_all(writer, deltas_of("abc")))
    assert b'"stop"' not in sent
    assert b'"finish_reason":"stop"' in writer.end().data
