"""The short way for plain text chunks agrees with the long one, and takes nothing else."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.requests import Route
from panal.node.answer import AnswerWriter
from panal.node.engines.dialect import plain_delta
from panal.node.engines.engine import Delta
from panal.node.engines.text_chunks import MISSES_MAX, TextChunks
from tests.support.node_gateway import chunks_of
from tests.unit.node.answers import data_of, plan, write_all


def chat(delta: Any, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
    return msgspec.json.encode({"id": "x", "object": "o", "created": 1, "model": "m", "choices": [choice]})


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
@given(pieces=st.lists(st.text(max_size=5), min_size=1, max_size=5))
def test_both_ways_write_the_same_answer(route: Route, pieces: list[str]) -> None:
    pieces = [piece.encode("utf-8", "ignore").decode() or "x" for piece in pieces]
    short: list[Delta] = []
    long: list[Delta] = []
    for piece in pieces:
        content: Any = {"delta": {"content": piece}} if route is Route.CHAT else {"text": piece}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": None}
        event = msgspec.json.encode({"id": "x", "choices": [choice]})
        found = TextChunks(route).read(event)
        assert found is not None
        short.append(found)
        long.append(plain_delta(msgspec.json.decode(event), route))
    for stream in (True, False):
        first = write_all(AnswerWriter(plan(route=route, stream=stream)), short)
        second = write_all(AnswerWriter(plan(route=route, stream=stream)), long)
        assert [(e.text, e.tokens, e.role) for e in first] == [(e.text, e.tokens, e.role) for e in second]
        assert chunks_of(data_of(first)) == chunks_of(data_of(second))


@pytest.mark.parametrize(
    "event",
    [
        chat({"role": "assistant", "content": "a"}),
        chat({"content": None}),
        chat({"content": "a", "tool_calls": [{}]}),
        chat({"content": "a", "x_reply": 1}),
        chat({"content": "a"}, finish_reason="stop"),
        chat({"content": "a"}, index=1),
        chat({"content": "a"}, logprobs={"content": []}),
        msgspec.json.encode({"choices": []}),
        msgspec.json.encode({"choices": [{"delta": {"content": "a"}}], "usage": {"prompt_tokens": 1}}),
        msgspec.json.encode({"choices": [{"delta": {"content": "a"}}], "prompt_token_ids": [1]}),
        msgspec.json.encode({"error": {"message": "x"}}),
        b"not json",
    ],
)
def test_everything_else_goes_the_long_way(event: bytes) -> None:
    assert TextChunks(Route.CHAT).read(event) is None


def test_an_engine_whose_chunks_never_fit_is_not_tried_for_ever() -> None:
    reader = TextChunks(Route.CHAT)
    for _ in range(MISSES_MAX):
        assert reader.read(chat({"content": "a", "odd": 1})) is None
    assert reader.read(chat({"content": "a"})) is None


def test_ids_come_with_the_text() -> None:
    delta = TextChunks(Route.CHAT).read(chat({"content": ""}, token_ids=[240]))
    assert delta is not None and (delta.text, delta.token_ids, delta.tokens) == ("", [240], 1)


def test_a_fingerprint_stays_on_all_chunks_once_it_was_seen() -> None:
    writer = AnswerWriter(plan())
    first = msgspec.json.decode(chat({"role": "assistant", "content": ""}))
    first["system_fingerprint"] = "fp"
    short = TextChunks(Route.CHAT).read(chat({"content": "a"}))
    assert short is not None
    events = write_all(writer, [plain_delta(first, Route.CHAT), short])
    assert [chunk["system_fingerprint"] for chunk in chunks_of(data_of(events))] == ["fp", "fp"]
