"""Requests and chunks of each dialect."""

from typing import Any

import pytest

from panal.core.errors import EngineFailed
from panal.core.requests import Route
from panal.node.engines.dialect import Ask, continuation_body, plain_delta, tokens_max, usage_of
from panal.node.engines.engine import EngineCall, Json
from panal.node.engines.llama_cpp import LlamaCppDialect
from panal.node.engines.plain import PlainDialect
from panal.node.engines.token_ids import TokenIdsDialect
from panal.protocol.messages import Emitted, TokenUsage

CHAT: Json = {
    "model": "public",
    "messages": [{"role": "user", "content": "hi"}],
    "max_completion_tokens": 20,
    "temperature": 0.3,
    "seed": 7,
    "x_test": {"a": [1]},
    "top_k": 5,
    "stream_options": {"x": 1},
}
EMITTED = Emitted(text="ab", token_ids=[1, 2], completion_tokens=2, prompt_tokens=3)


def asked(answers: dict[str, Json]) -> tuple[Ask, list[tuple[str, Json]]]:
    """An engine's small answers, and what it was asked."""
    log: list[tuple[str, Json]] = []

    async def ask(path: str, body: Json) -> Json:
        log.append((path, body))
        return answers[path]

    return ask, log


async def never(path: str, body: Json) -> Json:
    raise AssertionError(f"nobody should ask {path}")


@pytest.mark.parametrize("dialect", [PlainDialect(), TokenIdsDialect(), LlamaCppDialect()])
def test_first_requests_keep_every_field_and_always_stream_with_usage(dialect: Any) -> None:
    request = dialect.first(EngineCall(Route.CHAT, CHAT), "own-name")
    assert request.path == "/v1/chat/completions"
    for name, value in CHAT.items():
        if name not in ("model", "stream_options"):
            assert request.body[name] == value
    assert request.body["model"] == "own-name"
    assert request.body["stream"] is True
    assert request.body["stream_options"] == {"x": 1, "include_usage": True}
    assert "stream" not in CHAT and CHAT["stream_options"] == {"x": 1}


def test_vllm_is_asked_for_ids_and_gets_the_salt() -> None:
    request = TokenIdsDialect().first(EngineCall(Route.CHAT, CHAT, cache_salt="s"), "m")
    assert request.body["return_token_ids"] is True
    assert request.body["cache_salt"] == "s"


def test_llama_cpp_is_not_asked_for_ids_where_it_would_refuse_them() -> None:
    dialect = LlamaCppDialect()
    assert dialect.first(EngineCall(Route.CHAT, CHAT), "m").body["logprobs"] is True
    tools = {**CHAT, "tools": [{"type": "function"}]}
    assert "logprobs" not in dialect.first(EngineCall(Route.CHAT, tools), "m").body
    assert "logprobs" not in dialect.first(EngineCall(Route.CHAT, {**CHAT, "n": 2}), "m").body
    three = dialect.first(EngineCall(Route.CHAT, {**CHAT, "logprobs": True, "top_logprobs": 3}), "m")
    assert three.body["top_logprobs"] == 3


def test_a_continuation_has_less_to_make_another_seed_and_no_chat_fields() -> None:
    body = continuation_body(EngineCall(Route.CHAT, {**CHAT, "min_tokens": 1}, EMITTED), "m")
    assert body["max_tokens"] == 18 and body["min_tokens"] == 0
    assert "messages" not in body and "max_completion_tokens" not in body
    assert body["seed"] != 7 and body["x_test"] == {"a": [1]} and body["temperature"] == 0.3
    again = continuation_body(EngineCall(Route.CHAT, CHAT, EMITTED), "m")
    assert again["seed"] == body["seed"]


async def test_vllm_continues_from_the_rendered_prompt_and_the_ids() -> None:
    ask, log = asked({"/tokenize": {"tokens": [9, 8]}})
    request = await TokenIdsDialect().resumed(EngineCall(Route.CHAT, CHAT, EMITTED), "m", 100, ask)
    assert request.path == "/v1/completions"
    assert request.body["prompt"] == [9, 8, 1, 2]
    assert log == [("/tokenize", {"model": "m", "messages": CHAT["messages"], "add_generation_prompt": True})]


async def test_vllm_without_a_limit_is_told_one_since_its_raw_route_has_a_small_one() -> None:
    ask, _ = asked({"/tokenize": {"tokens": [9, 8]}})
    body = {"messages": CHAT["messages"]}
    request = await TokenIdsDialect().resumed(EngineCall(Route.CHAT, body, EMITTED), "m", 100, ask)
    assert request.body["max_tokens"] == 96


async def test_without_ids_the_text_is_made_into_tokens() -> None:
    ask, log = asked({"/tokenize": {"tokens": [9]}, "/apply-template": {"prompt": "<hi>"}})
    emitted = Emitted(text="ab", completion_tokens=2)
    request = await LlamaCppDialect().resumed(EngineCall(Route.CHAT, CHAT, emitted), "m", 0, ask)
    assert request.body["prompt"] == [9, 9]
    assert [path for path, _ in log] == ["/tokenize", "/apply-template", "/tokenize"]
    assert log[0][1] == {"content": "ab", "add_special": False, "parse_special": False}
    assert log[2][1] == {"content": "<hi>", "add_special": True, "parse_special": True}


@pytest.mark.parametrize("dialect", [TokenIdsDialect(), LlamaCppDialect()])
async def test_raw_prompts_are_continued_whatever_their_form(dialect: Any) -> None:
    ask, _ = asked({"/tokenize": {"tokens": [9]}})
    for prompt, ids in [
        ("text", [9, 1, 2]),
        (["text"], [9, 1, 2]),
        ([5, 6], [5, 6, 1, 2]),
        ([[5, 6]], [5, 6, 1, 2]),
    ]:
        call = EngineCall(Route.COMPLETIONS, {"prompt": prompt}, EMITTED)
        assert (await dialect.resumed(call, "m", 0, ask)).body["prompt"] == ids
    with pytest.raises(EngineFailed):
        await dialect.resumed(EngineCall(Route.COMPLETIONS, {"prompt": ["a", "b"]}, EMITTED), "m", 0, ask)


@pytest.mark.parametrize("dialect", [TokenIdsDialect(), LlamaCppDialect()])
async def test_nothing_is_sent_when_all_tokens_were_made(dialect: Any) -> None:
    call = EngineCall(Route.CHAT, {**CHAT, "max_completion_tokens": 2}, EMITTED)
    assert (await dialect.resumed(call, "m", 0, never)).nothing_left


async def test_vllm_chunks_lose_their_ids_to_the_delta() -> None:
    reader = TokenIdsDialect().reader(EngineCall(Route.CHAT, CHAT), never)
    first = await reader.read(
        {
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
            "prompt_token_ids": [1, 2, 3],
        }
    )
    assert first.usage == TokenUsage(prompt_tokens=3) and first.tokens == 0
    assert first.chunk is not None and "prompt_token_ids" not in first.chunk
    held = await reader.read({"choices": [{"index": 0, "delta": {"content": ""}, "token_ids": [240]}]})
    assert (held.text, held.token_ids, held.tokens) == ("", [240], 1)
    assert held.chunk == {"choices": [{"index": 0, "delta": {"content": ""}}]}


async def test_a_resumed_chat_reads_completions_chunks_as_chat_chunks() -> None:
    reader = TokenIdsDialect().reader(EngineCall(Route.CHAT, CHAT, EMITTED), never)
    delta = await reader.read(
        {"choices": [{"index": 0, "text": "x", "token_ids": [3], "finish_reason": None}]}
    )
    assert delta.text == "x" and delta.chunk is not None
    assert delta.chunk["choices"] == [{"index": 0, "finish_reason": None, "delta": {"content": "x"}}]


def llama_chunk(text: str, ids: list[int], predicted: int) -> Json:
    entries = [{"id": token, "token": text, "top_logprobs": [{"id": token}]} for token in ids]
    return {
        "choices": [
            {"index": 0, "finish_reason": None, "delta": {"content": text}, "logprobs": {"content": entries}}
        ],
        "timings": {"prompt_n": 10, "cache_n": 4, "predicted_n": predicted},
    }


async def test_llama_cpp_ids_that_were_kept_back_are_found_again() -> None:
    ask, log = asked({"/tokenize": {"tokens": [7, 8, 230]}})
    reader = LlamaCppDialect().reader(EngineCall(Route.CHAT, CHAT), ask)
    delta = await reader.read(llama_chunk("👌", [230], 3))
    assert (delta.token_ids, delta.tokens) == ([7, 8, 230], 3)
    assert delta.usage == TokenUsage(prompt_tokens=14, cached_tokens=4)
    assert delta.chunk is not None and set(delta.chunk) == {"choices"}
    assert "logprobs" not in delta.chunk["choices"][0]
    assert log[0][1]["content"] == "👌"
    following = await reader.read(llama_chunk("a", [5], 4))
    assert (following.token_ids, following.tokens, following.usage) == ([5], 1, None)


@pytest.mark.parametrize("tokens", [[7, 230], [7, 8, 9]])
async def test_llama_cpp_ids_that_do_not_fit_are_unknown_from_then_on(tokens: list[int]) -> None:
    ask, _ = asked({"/tokenize": {"tokens": tokens}})
    reader = LlamaCppDialect().reader(EngineCall(Route.CHAT, CHAT), ask)
    assert (await reader.read(llama_chunk("👌", [230], 3))).token_ids is None
    later = await reader.read(llama_chunk("a", [5], 4))
    assert later.token_ids is None and later.tokens == 1


async def test_a_client_who_asked_for_logprobs_keeps_them() -> None:
    body = {**CHAT, "logprobs": True}
    reader = LlamaCppDialect().reader(EngineCall(Route.CHAT, body), never)
    delta = await reader.read(llama_chunk("a", [5], 1))
    assert delta.chunk is not None
    [entry] = delta.chunk["choices"][0]["logprobs"]["content"]
    assert entry["top_logprobs"] == []
    assert delta.token_ids == [5]


async def test_llama_cpp_completions_lose_their_extras_and_their_usage() -> None:
    reader = LlamaCppDialect().reader(EngineCall(Route.COMPLETIONS, {"prompt": "x"}), never)
    delta = await reader.read(
        {
            "choices": [{"index": 0, "text": "a", "logprobs": None, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1},
            "__verbose": {"tokens": [79], "tokens_predicted": 1, "prompt": "secret"},
            "timings": {"prompt_n": 3, "predicted_n": 1},
        }
    )
    assert delta.chunk == {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}
    assert delta.token_ids == [79] and delta.finish == "length"
    assert delta.usage == TokenUsage(prompt_tokens=3, completion_tokens=1)


def test_plain_chunks_say_what_every_chunk_says() -> None:
    delta = plain_delta(
        {"choices": [{"delta": {"content": "a", "reasoning": None}}], "usage": None}, Route.CHAT
    )
    assert (delta.text, delta.opaque, delta.usage) == ("a", False, None)
    assert plain_delta({"choices": [{"delta": {"reasoning": "b"}}]}, Route.CHAT).opaque
    assert plain_delta({"choices": [], "usage": {"prompt_tokens": 1}}, Route.CHAT).chunk is None


def test_odd_numbers_count_as_nothing() -> None:
    odd = {"prompt_tokens": -1, "completion_tokens": "7", "prompt_tokens_details": None}
    assert usage_of(odd) == TokenUsage()
    assert tokens_max({"max_tokens": True}) is None
    assert tokens_max({"max_tokens": 5}) == 5


async def test_extras_that_the_client_asked_for_itself_stay_in_its_chunks() -> None:
    call = EngineCall(Route.CHAT, {**CHAT, "return_token_ids": True})
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [5]}]}
    reader = TokenIdsDialect().reader(call, never)
    assert reader.short(b'{"choices":[{"delta":{"content":"a"},"token_ids":[5]}]}') is None
    delta = await reader.read(chunk)
    assert delta.token_ids == [5] and delta.chunk is not None
    assert delta.chunk["choices"][0]["token_ids"] == [5]
    asking = EngineCall(Route.CHAT, {**CHAT, "timings_per_token": True})
    delta = await LlamaCppDialect().reader(asking, never).read(llama_chunk("a", [5], 1))
    assert delta.chunk is not None and "timings" in delta.chunk
