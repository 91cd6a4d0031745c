"""Whole answers put together from chunks."""

from typing import Any

import pytest

from panal.core.errors import EngineFailed
from panal.core.requests import Route
from panal.node.answer import AnswerWriter
from panal.node.answer_format import merged
from panal.node.engines.dialect import plain_delta
from panal.node.engines.echo_answers import tool_calls, tool_deltas
from panal.protocol.messages import Emitted
from tests.unit.node.answers import PROMPT_TOKENS, data_of, deltas_of, plan, whole_of, write_all

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("weather", "time")]


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> Any:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}


def whole(chunks: list[Any], **changes: Any) -> Any:
    writer = AnswerWriter(plan(stream=False, **changes))
    write_all(writer, [plain_delta(each, Route.CHAT) for each in chunks])
    return whole_of(writer.end())


def test_a_whole_answer_has_message_finish_and_usage() -> None:
    writer = AnswerWriter(plan(stream=False))
    events = write_all(writer, deltas_of("Grüezi 👋"))
    assert data_of(events) == b""
    answer = whole_of(writer.end())
    assert answer["object"] == "chat.completion"
    assert answer["id"] == "chatcmpl-1" and answer["model"] == "m"
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Grüezi 👋"}
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["prompt_tokens"] == PROMPT_TOKENS


def test_the_completions_route_has_text() -> None:
    writer = AnswerWriter(plan(stream=False, route=Route.COMPLETIONS))
    write_all(writer, deltas_of("abc", route=Route.COMPLETIONS))
    answer = whole_of(writer.end())
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == "abc"


def test_bookkeeping_goes_out_now_and_then_so_that_a_cut_costs_little() -> None:
    events = write_all(AnswerWriter(plan(stream=False)), deltas_of("a" * 100, finish=None))
    assert 5 <= len(events) <= 7
    assert all(event.data == b"" and not event.role for event in events)
    assert "".join(event.text for event in events) == "a" * sum(event.tokens for event in events)


def test_a_resumed_whole_answer_holds_the_old_text_too() -> None:
    text = "one two three"
    emitted = Emitted(text=text[:5], token_ids=list(text[:5].encode()), prompt_tokens=7, completion_tokens=5)
    writer = AnswerWriter(plan(stream=False, emitted=emitted))
    write_all(writer, deltas_of(text, done=5))
    answer = whole_of(writer.end())
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["usage"]["completion_tokens"] == len(text)


def test_interleaved_tool_calls_are_put_together_by_index() -> None:
    chunks = [chunk({"role": "assistant", "content": None})]
    chunks += [chunk(delta) for delta in tool_deltas(TOOLS)]
    chunks.append(chunk({}, "tool_calls"))
    message = whole(chunks)["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in tool_calls(TOOLS)
    ]


def test_pieces_of_a_call_without_index_or_type_still_find_their_call() -> None:
    first = {"id": "c1", "function": {"name": "f", "arguments": '{"a"'}}
    second = {"function": {"arguments": ": 1}"}}
    message = whole(
        [chunk({"tool_calls": [first]}), chunk({"tool_calls": [second]}), chunk({}, "tool_calls")]
    )
    [call] = message["choices"][0]["message"]["tool_calls"]
    assert call == {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def test_fields_that_nobody_knows_reach_the_message() -> None:
    answer = whole(
        [
            {
                **chunk({"content": "a", "reasoning_content": "be", "x_reply": {"a": [1]}}),
                "service_tier": "x",
            },
            chunk({"reasoning_content": "cause", "x_reply": {"a": [2]}}, "stop"),
        ]
    )
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"] == "because"
    assert message["x_reply"] == {"a": [1, 2]}
    assert answer["service_tier"] == "x"


def test_logprobs_are_joined() -> None:
    answer = whole(
        [
            chunk({"content": "a"}, logprobs={"content": [{"token": "a"}]}),
            chunk({"content": "b"}, "stop", logprobs={"content": [{"token": "b"}]}),
        ]
    )
    assert answer["choices"][0]["logprobs"] == {"content": [{"token": "a"}, {"token": "b"}]}


def test_an_engine_that_sends_without_end_is_an_error() -> None:
    writer = AnswerWriter(plan(stream=False))
    with pytest.raises(EngineFailed):
        for _ in range(20):
            writer.write(plain_delta(chunk({"content": "x" * 1_000_000}), Route.CHAT), 0.0)


def test_merging_grows_texts_lists_and_objects_and_replaces_the_rest() -> None:
    assert merged("a", "b") == "ab"
    assert merged([1], [2]) == [1, 2]
    assert merged({"a": "x", "b": 1}, {"a": "y", "b": 2}) == {"a": "xy", "b": 2}
    assert merged(None, 3) == 3
