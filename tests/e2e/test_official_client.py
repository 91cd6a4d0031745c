"""The official client against a whole installation: everything that its users do first."""

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.support.asking import say
from tests.support.installation import until
from tests.support.served import GONE_S_MAX, Served

UNICODE = "añ 日本語 👩‍👩‍👧‍👦 שלום é́ 🏔"
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("weather", "time_now")
]


# --- answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["hello there", UNICODE], ids=["plain", "unicode"])
def test_a_chat_answer_is_the_same_streamed_and_whole(served: Served, words: str) -> None:
    with served.client() as client:
        whole = client.chat.completions.create(**say(words))
        chunks = list(client.chat.completions.create(**say(words), stream=True))
    assert whole.object == "chat.completion"
    assert whole.model == "echo"
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].message.content == words
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == len(words.encode())
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == words
    assert {(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks} == {
        (chunks[0].id, chunks[0].created, "echo", "chat.completion.chunk")
    }
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices[0].delta.role] == ["assistant"]
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert chunks[0].id.startswith("chatcmpl-")


@pytest.mark.parametrize("words", ["hello there", UNICODE], ids=["plain", "unicode"])
def test_a_completion_is_the_same_streamed_and_whole(served: Served, words: str) -> None:
    request: dict[str, Any] = {"model": "echo", "prompt": words}
    with served.client() as client:
        whole = client.completions.create(**request)
        chunks = list(client.completions.create(**request, stream=True))
    assert whole.object == "text_completion"
    assert whole.choices[0].text == "\n" + words
    assert whole.choices[0].finish_reason == "stop"
    assert "".join(chunk.choices[0].text for chunk in chunks) == "\n" + words
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert whole.model == chunks[0].model == "echo"
    assert whole.id.startswith("cmpl-")


async def test_the_asynchronous_client_does_the_same(served: Served) -> None:
    async with served.async_client() as client:
        answers = await asyncio.gather(
            *(client.chat.completions.create(**say(f"number {number}")) for number in range(10))
        )
        assert [answer.choices[0].message.content for answer in answers] == [
            f"number {number}" for number in range(10)
        ]
        stream = await client.chat.completions.create(**say(UNICODE), stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == UNICODE
        completion = await client.completions.create(model="echo", prompt="abc")
        assert completion.choices[0].text == "\nabc"
        vectors = await client.embeddings.create(model="echo", input=["a", "b"])
        assert len(vectors.data) == 2
        assert "echo" in [model.id async for model in client.models.list()]


def test_models_are_listed_and_found(served: Served) -> None:
    with served.client() as client:
        assert [model.id for model in client.models.list()] == ["echo"]
        found = client.models.retrieve("echo")
        assert (found.id, found.object) == ("echo", "model")
        with pytest.raises(openai.NotFoundError) as refused:
            client.models.retrieve("nothing")
    assert refused.value.code == "model_not_found"


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("route", ["chat", "completions"])
def test_usage_comes_at_the_end_of_a_stream_only_if_asked_for(
    served: Served, route: str, include: bool
) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if include else {}
    with served.client() as client:
        chunks: list[Any]
        if route == "chat":
            chunks = list(client.chat.completions.create(**say("abc"), stream=True, **options))
        else:
            chunks = list(client.completions.create(model="echo", prompt="abc", stream=True, **options))
    usages = [chunk for chunk in chunks if chunk.usage is not None]
    if not include:
        assert usages == []
        assert all(chunk.choices for chunk in chunks)
        return
    assert usages == [chunks[-1]]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == (3 if route == "chat" else 4)


def test_stop_strings_end_an_answer_before_them(served: Served) -> None:
    for stop in ("5", ["nothing", "4 5"]):
        with served.client() as client:
            whole = client.chat.completions.create(**say("count 9"), stop=stop)
            chunks = list(client.chat.completions.create(**say("count 9"), stop=stop, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert whole.choices[0].message.content == text
        assert "1 2 3 4 5".startswith(text)
        assert text.rstrip() == ("1 2 3 4" if stop == "5" else "1 2 3")
        assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "stop"


def test_a_limit_of_tokens_ends_an_answer_and_says_so(served: Served) -> None:
    with served.client() as client:
        for name in ("max_tokens", "max_completion_tokens"):
            answer = client.chat.completions.create(**say("abcdef"), **{name: 3})
            assert answer.choices[0].message.content == "abc"
            assert answer.choices[0].finish_reason == "length"


def test_several_choices_are_kept_apart(served: Served) -> None:
    with served.client() as client:
        whole = client.chat.completions.create(**say("two of them"), n=2)
        chunks = list(client.chat.completions.create(**say("two of them"), n=2, stream=True))
        prompts = client.completions.create(model="echo", prompt="again", n=2)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert {choice.message.content for choice in whole.choices} == {"two of them"}
    assert whole.usage is not None and whole.usage.completion_tokens == 2 * len("two of them")
    for index in (0, 1):
        of = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(choice.delta.content or "" for choice in of) == "two of them"
        assert [choice.delta.role for choice in of if choice.delta.role] == ["assistant"]
        assert [choice.finish_reason for choice in of if choice.finish_reason] == ["stop"]
    assert [choice.text for choice in prompts.choices] == ["\nagain", "\nagain"]


def test_fields_that_panal_does_not_know_pass_both_ways(served: Served) -> None:
    """P15 as far as the client sees it: the echo engine says the body again that it got."""
    more = {"x_test": {"a": [1]}, "top_k": 5, "x_echo": {"echo_body": True, "extra": {"deep": ["é"]}}}
    with served.client() as client:
        answer = client.chat.completions.create(
            **say("x"), seed=7, logit_bias={"5": 1}, max_completion_tokens=5000, extra_body=more
        )
    message = answer.choices[0].message
    body = json.loads(message.content or "")
    assert body["x_test"] == {"a": [1]}
    assert (body["seed"], body["logit_bias"], body["top_k"]) == (7, {"5": 1}, 5)
    assert body["max_completion_tokens"] == 5000
    assert message.model_extra == {"x_reply": {"deep": ["é"]}}


# --- tools ---------------------------------------------------------------------------------------------


def test_two_tool_calls_are_assembled_exactly(served: Served) -> None:
    request = say("use a tool") | {"tools": TOOLS}
    with served.client() as client:
        whole = client.chat.completions.create(**request).choices[0]
        with client.chat.completions.stream(**request) as stream:
            streamed = stream.get_final_completion().choices[0]
        slow = request | {"extra_body": {"x_echo": {"delay_token_s": 0.02}}}
        with client.chat.completions.create(**slow, stream=True) as chunks:
            for chunk in chunks:
                calls = chunk.choices[0].delta.tool_calls or []
                if any(call.function and call.function.arguments for call in calls):
                    assert served.gauge("panal_streams") == 1, "the first argument comes before the end"
                    break
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls"
        assert not choice.message.content
        made = [
            (call.id, call.function.name, call.function.arguments)
            for call in choice.message.tool_calls or []
            if call.type == "function"
        ]
        assert made == [
            ("call_echo_0", "weather", '{"city": "Zürich 🏔", "days": [1, 2]}'),
            ("call_echo_1", "time_now", ""),
        ]


# --- refusals ------------------------------------------------------------------------------------------


def test_a_wrong_key_is_an_authentication_error(served: Served) -> None:
    texts = set()
    for key in ("sk-panal-" + "a" * 40, "nonsense", "sk-panal-short"):
        with served.client(key) as client, pytest.raises(openai.AuthenticationError) as refused:
            client.chat.completions.create(**say("x"))
        texts.add((refused.value.message, refused.value.code))
        with served.client(key) as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
    assert len(texts) == 1


def test_an_unknown_model_is_not_found_on_every_route(served: Served) -> None:
    with served.client() as client:
        asked = [
            lambda: client.chat.completions.create(**say("x") | {"model": "never"}),
            lambda: client.chat.completions.create(**say("x") | {"model": "never"}, stream=True),
            lambda: client.completions.create(model="never", prompt="x"),
            lambda: client.embeddings.create(model="never", input="x"),
        ]
        for ask in asked:
            with pytest.raises(openai.NotFoundError) as refused:
                ask()
            assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


def test_a_bad_request_names_the_field(served: Served) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"temperature": 0, "max_tokens": -1}, "max_tokens"),
        ({"extra_body": {"chat_template": "x"}}, "chat_template"),
        ({"stop": ["a"] * 40}, "stop"),
        ({"n": 100}, "n"),
        ({"messages": []}, "messages"),
    ]
    with served.client() as client:
        for fields, name in wrong:
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(**say("x") | fields)
            assert refused.value.param == name


def test_what_a_key_may_not_do_is_a_permission_error(served: Served) -> None:
    """No node stands in a country, so a key that is bound to one has nowhere to go."""
    bound = served.admin().post("/api/v1/keys", {"name": "bound", "residency": ["ES"]})["secret"]

    def known() -> bool:
        return served.call("GET", "/v1/models", key=bound).status == 200

    def refused() -> openai.APIStatusError | None:
        """A gateway that was held up says for a moment that it cannot judge: 503, try again."""
        with served.client(bound) as client, pytest.raises(openai.APIStatusError) as error:
            client.chat.completions.create(**say("x"))
        return None if error.value.status_code == 503 else error.value

    until(known, 5.0, "the new key is known")
    error = until(refused, 10.0, "the gateway judges")
    assert isinstance(error, openai.PermissionDeniedError)
    assert error.code == "not_allowed"
    reply = served.call("GET", "/api/v1/nodes")
    assert (reply.status, reply.error["code"]) == (403, "not_allowed")


def test_every_answer_and_every_error_has_a_request_id(served: Served) -> None:
    with served.client() as client:
        raw = client.chat.completions.with_raw_response.create(**say("x"))
        request_id = raw.headers["x-request-id"]
        assert request_id.startswith("req_")
        assert raw.parse().id.removeprefix("chatcmpl-") == request_id.removeprefix("req_")
        assert served.record_of(request_id)["outcome"] == "complete"
        with client.chat.completions.with_streaming_response.create(**say("x"), stream=True) as streamed:
            assert streamed.headers["x-request-id"].startswith("req_")
            assert streamed.headers["content-type"].startswith("text/event-stream")
            streamed.read()
        assert client.embeddings.with_raw_response.create(model="echo", input="x").headers["x-request-id"]
        with pytest.raises(openai.NotFoundError) as refused:
            client.chat.completions.create(**say("x") | {"model": "never"})
    assert refused.value.request_id is not None
    assert refused.value.request_id.startswith("req_")
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["request_id"] == refused.value.request_id


# --- leaving -------------------------------------------------------------------------------------------


def test_a_client_that_closes_its_stream_frees_the_slot(served: Served) -> None:
    engine = served.engine()
    before = engine.stats()["cancelled"]
    with served.client() as client:
        stream = client.chat.completions.create(**say("count 100", delay_token_s=0.2), stream=True)
        for number, _chunk in enumerate(stream):
            if number == 5:
                break
        assert served.gauge("panal_streams") == 1
        stream.close()
        engine.until_cancelled(before)
        until(served.is_idle, GONE_S_MAX, "all gauges are back to 0")
        assert client.chat.completions.create(**say("next")).choices[0].message.content == "next"


async def test_an_asynchronous_client_that_gives_up_frees_the_slot(served: Served) -> None:
    engine = served.engine()
    before = engine.stats()
    async with served.async_client() as client:
        for stream in (False, True):
            asking = asyncio.create_task(
                client.chat.completions.create(**say("x", delay_first_s=30), stream=stream)
            )
            await asyncio.to_thread(until, lambda: engine.stats()["running"] == 1, 10.0, "it is running")
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await asyncio.to_thread(until, lambda: engine.stats()["running"] == 0, GONE_S_MAX, "it is gone")
    assert engine.stats()["cancelled"] == before["cancelled"] + 2
    await asyncio.to_thread(served.until_idle, GONE_S_MAX)
