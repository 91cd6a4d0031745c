"""What a client reads, from an engine that behaves and one that does not, through the agent."""

import base64
import struct
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from panal.node.engines.echo_answers import embedding, tool_calls
from tests.support.echo_bench import EchoBench, echo_bench
from tests.support.node_gateway import chat, chunks_of, text_of

NUMBERS = " ".join(str(number) for number in range(1, 51))
HARD = "Zürich 日本語 👩‍👩‍👧‍👦 שלום e\u0301 🏔️ end"
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("weather", "time")]


@pytest.fixture
async def bench() -> AsyncIterator[EchoBench]:
    async with echo_bench() as found:
        yield found


@pytest.mark.parametrize("fault", ["close_after", "stop_after"])
async def test_a_broken_stream_is_an_error_after_its_text_and_never_done(
    bench: EchoBench, fault: str
) -> None:
    seen = bench.gateway.open(chat("count 50", x_echo={fault: 3}))
    last = await seen.end()
    assert last.error is not None and last.error.kind == "failed"
    assert text_of(seen.data) == seen.text == NUMBERS[:3]
    assert b"[DONE]" not in seen.data


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("route", ["chat", "completions"])
@pytest.mark.parametrize("usage", ["", "omit", "lie", "cumulative"])
async def test_usage_is_the_same_whatever_the_engine_says_and_shown_only_on_request(
    bench: EchoBench, route: str, include: bool, usage: str
) -> None:
    body = chat("count 9") if route == "chat" else {"prompt": "count 9"}
    seen = bench.gateway.open({**body, "x_echo": {"usage": usage}}, route=route, include_usage=include)
    last = await seen.end()
    assert last.usage is not None
    made = len("1 2 3 4 5 6 7 8 9") + (route == "completions")
    assert last.usage.completion_tokens == made
    assert last.usage.prompt_tokens == len("<user>count 9\n<assistant>" if route == "chat" else "count 9")
    chunks = [chunk for chunk in chunks_of(seen.data) if chunk != "[DONE]"]
    shown = [chunk for chunk in chunks if "usage" in chunk]
    assert shown == ([chunks[-1]] if include else [])
    assert all(chunk["choices"] for chunk in chunks if "usage" not in chunk)
    if include:
        assert shown[0]["choices"] == []
        assert shown[0]["usage"]["total_tokens"] == made + last.usage.prompt_tokens


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_cut_by_a_dying_engine_goes_on_without_a_repeat(
    bench: EchoBench, stream: bool
) -> None:
    body = chat("count 50", x_echo={"close_after": 70, "delay_token_s": 0.0005})
    first = bench.gateway.open(body, stream=stream)
    assert (await first.end()).error is not None
    emitted = first.emitted()
    assert NUMBERS.startswith(emitted.text) and len(emitted.text) >= 40
    second = bench.gateway.open(body, stream=stream, emitted=emitted)
    last = await second.end()
    assert last.usage is not None
    assert last.usage.completion_tokens == len(NUMBERS)
    assert last.usage.prompt_tokens == len("<user>count 50\n<assistant>")
    if stream:
        data = first.data + second.data
        assert text_of(data) == NUMBERS
        chunks = [chunk for chunk in chunks_of(data) if chunk != "[DONE]"]
        assert sum("role" in choice["delta"] for chunk in chunks for choice in chunk["choices"]) == 1
        assert {(chunk["id"], chunk["created"], chunk["object"]) for chunk in chunks} == {
            ("chatcmpl-test", 1_800_000_000, "chat.completion.chunk")
        }
    else:
        answer = msgspec.json.decode(last.data)
        assert answer["choices"][0]["message"]["content"] == NUMBERS


@pytest.mark.parametrize("cut", range(1, len(HARD.encode()), 5))
async def test_hard_characters_survive_a_cut_anywhere(bench: EchoBench, cut: int) -> None:
    body = chat(HARD, x_echo={"close_after": cut})
    first = bench.gateway.open(body)
    assert (await first.end()).error is not None
    second = bench.gateway.open(body, emitted=first.emitted())
    await second.end()
    assert text_of(first.data + second.data) == HARD


@pytest.mark.parametrize("crlf", [False, True])
async def test_letters_stay_whole_when_the_engine_writes_one_byte_at_a_time(
    bench: EchoBench, crlf: bool
) -> None:
    seen = bench.gateway.open(chat(HARD, x_echo={"split_bytes": 1, "crlf": crlf}))
    await seen.end()
    assert text_of(seen.data) == HARD


async def test_tool_calls_stream_as_they_come_and_assemble_the_same(bench: EchoBench) -> None:
    body = chat("use a tool", tools=TOOLS, x_echo={"delay_token_s": 0.002})
    seen = bench.gateway.open(body)
    await seen.until(lambda attempt: any(event.opaque for event in attempt.events))
    assert seen.last is None, "the first call is here before the engine is done"
    assert (await seen.end()).finish == "tool_calls"
    calls: dict[int, dict[str, str]] = {}
    for chunk in chunks_of(seen.data)[:-2]:
        for piece in chunk["choices"][0]["delta"].get("tool_calls", ()):
            call = calls.setdefault(piece["index"], {"id": piece.get("id", ""), "name": "", "arguments": ""})
            call["name"] += piece["function"].get("name", "")
            call["arguments"] += piece["function"]["arguments"]
    assert [calls[0], calls[1]] == tool_calls(TOOLS)
    whole = bench.gateway.open(body, stream=False)
    message = msgspec.json.decode((await whole.end()).data)["choices"][0]["message"]
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [
        call["arguments"] for call in tool_calls(TOOLS)
    ]
    assert message["content"] is None


async def test_every_field_reaches_the_engine_and_unknown_fields_come_back(bench: EchoBench) -> None:
    fields: dict[str, Any] = {
        "response_format": {"type": "text"},
        "max_completion_tokens": 4000,
        "seed": 7,
        "logit_bias": {"50": -1},
        "x_test": {"a": [1]},
    }
    knobs = {"echo_body": True, "extra": {"b": 2}}
    seen = bench.gateway.open(chat("hello", x_echo=knobs, **fields), stream=False)
    message = msgspec.json.decode((await seen.end()).data)["choices"][0]["message"]
    received = msgspec.json.decode(message["content"])
    assert {name: received[name] for name in fields} == fields
    assert message["x_reply"] == {"b": 2}
    streamed = bench.gateway.open(chat("hello", x_echo=knobs, **fields))
    await streamed.end()
    replies = [
        choice["delta"]["x_reply"]
        for chunk in chunks_of(streamed.data)[:-1]
        for choice in chunk["choices"]
        if "x_reply" in choice["delta"]
    ]
    assert replies == [{"b": 2}]


@pytest.mark.parametrize("stop", ["7", ["zzz", " 7"]])
async def test_stop_strings_end_an_answer_also_when_it_was_cut_before(bench: EchoBench, stop: Any) -> None:
    expected = "1 2 3 4 5 6 " if stop == "7" else "1 2 3 4 5 6"
    whole = bench.gateway.open(chat("count 50", stop=stop))
    last = await whole.end()
    assert text_of(whole.data) == expected and last.finish == "stop"
    assert "stop" not in bench.engine.stats.last_body
    body = chat("count 50", stop=stop, x_echo={"close_after": 8})
    first = bench.gateway.open(body)
    await first.end()
    second = bench.gateway.open(body, emitted=first.emitted())
    await second.end()
    assert text_of(first.data + second.data) == expected


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429])
async def test_a_refusal_of_the_engine_is_the_callers_with_its_body(bench: EchoBench, status: int) -> None:
    last = await bench.gateway.open(chat("x", x_echo={"status": status})).end()
    assert last.error is not None
    assert (last.error.kind, last.error.status) == ("caller", status)
    assert msgspec.json.decode(last.error.body)["error"]["code"] == status


async def test_an_engine_that_fails_is_not_the_callers_fault(bench: EchoBench) -> None:
    last = await bench.gateway.open(chat("x", x_echo={"status": 503})).end()
    assert last.error is not None and last.error.kind == "failed"


async def test_a_body_that_is_no_object_is_told_in_openais_words(bench: EchoBench) -> None:
    last = await bench.gateway.open({}, body=b"[1, 2]").end()
    assert last.error is not None and last.error.status == 400
    assert msgspec.json.decode(last.error.body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
async def test_embeddings_in_each_encoding_hold_the_same_vector(
    bench: EchoBench, encoding: str | None
) -> None:
    body: dict[str, Any] = {"input": ["one", "two"]}
    if encoding:
        body["encoding_format"] = encoding
    last = await bench.gateway.open(body, route="embeddings", stream=False).end()
    assert last.finish is not None and last.usage is not None and last.usage.prompt_tokens == 6
    answer = msgspec.json.decode(last.data)
    assert answer["model"] == "client-model"
    vector = answer["data"][0]["embedding"]
    if encoding == "base64":
        vector = struct.unpack("<8f", base64.b64decode(vector))
    assert vector == pytest.approx(embedding("one", 8), rel=1e-6)


async def test_a_wish_for_dimensions_that_cannot_be_met_is_refused(bench: EchoBench) -> None:
    body = {"input": "one", "dimensions": 3}
    last = await bench.gateway.open(body, route="embeddings", stream=False).end()
    assert last.error is not None and last.error.status == 400


async def test_a_held_answer_is_seen_only_when_it_is_whole(bench: EchoBench) -> None:
    seen = bench.gateway.open(chat("count 50", x_echo={"close_after": 20}), hold=True)
    last = await seen.end()
    assert last.error is not None and seen.data == b"" and seen.text == ""
    held = bench.gateway.open(chat("count 50"), hold=True)
    await held.end()
    assert text_of(held.data) == NUMBERS
