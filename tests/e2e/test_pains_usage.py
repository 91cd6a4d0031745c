"""What users of similar systems suffer from in what they are charged and shown: one test for each case."""

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.support.asking import Reader, say, wire
from tests.support.installation import until
from tests.support.served import Served

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("weather", "time_now")
]


def test_p07_a_client_that_leaves_pays_for_what_it_got(served: Served) -> None:
    """(a) After about ten of a hundred tokens; the node's record shows what it really made."""
    with served.client() as client:
        stream = client.chat.completions.create(**say("count 60", delay_token_s=0.05), stream=True)
        seen, answer = 0, ""
        for chunk in stream:
            answer = chunk.id
            seen += bool(chunk.choices[0].delta.content)
            if seen == 10:
                break
        stream.close()
    record = served.record_of(answer)
    assert (record["outcome"], record["partial"], record["error_code"]) == (
        "client_gone",
        True,
        "client_gone",
    )
    assert 10 <= record["completion_tokens"] <= 40
    assert record["prompt_tokens"] > 0
    (made,) = served.contributions(answer)
    assert made["useful_tokens"] == record["completion_tokens"]
    assert made["completion_tokens"] >= made["useful_tokens"]


@pytest.mark.parametrize("stream", [True, False])
def test_p07_an_answer_that_never_began_costs_nothing(served: Served, stream: bool) -> None:
    """(b) The engine dies before the first token and nobody else has the model."""
    before = {record["request"] for record in usage(served)}
    reply = served.call("POST", "/v1/chat/completions", wire(say("abc", close_after=0), stream=stream))
    assert reply.status == 502
    wanted = reply.error["request_id"]
    record = until(lambda: next((r for r in usage(served) if r["request"] == wanted), None), 15.0, "a record")
    assert record["request"] not in before
    assert (record["prompt_tokens"], record["completion_tokens"], record["partial"]) == (0, 0, False)
    assert record["outcome"] == "failed"


def test_p07_an_answer_that_went_on_elsewhere_is_paid_once(served: Served) -> None:
    """(c) The first node breaks off after ten tokens, another one says the rest."""
    other = served.join("other", "--engine", "echo")
    until(
        lambda: len([n for n in served.fleet().values() if n["state"] == "available"]) == 2, 30.0, "two nodes"
    )
    try:
        with served.client() as client:
            request = say("count 30", close_after=10) | {"stream_options": {"include_usage": True}}
            chunks = list(client.chat.completions.create(**request, stream=True))
    finally:
        other.program.stop()
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == " ".join(str(number) for number in range(1, 31))
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    record = served.record_of(chunks[0].id)
    assert len(usages) == 1
    assert usages[0].completion_tokens == record["completion_tokens"] == len(text)
    assert usages[0].prompt_tokens == record["prompt_tokens"]
    assert (record["outcome"], record["partial"], record["attempts"]) == ("complete", False, 2)
    first, second = served.contributions(chunks[0].id)
    assert (first["useful_tokens"], second["useful_tokens"]) == (10, len(text) - 10)
    assert first["node"] != second["node"]


@pytest.mark.parametrize("told", ["", "cumulative", "omit", "lie"])
def test_usage_is_the_same_for_client_ledger_and_metrics(served: Served, told: str) -> None:
    """Engines report usage once, with every chunk, never, or wrongly: everybody sees one number."""
    knobs = {"usage": told} if told else {}
    for words in ("héllo", "count 20"):
        for stream in (True, False):
            served.until_idle()
            before = tokens(served)
            body = wire(say(words, **knobs))
            if stream:
                events = served.events(
                    "/v1/chat/completions", body | {"stream_options": {"include_usage": True}}
                )
                last = json.loads(events[-2])
            else:
                last = served.call("POST", "/v1/chat/completions", body).json
            record = served.record_of(last["id"])
            shown = (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"])
            assert shown == (record["prompt_tokens"], record["completion_tokens"])
            assert last["usage"]["total_tokens"] == sum(shown)
            after = tokens(served)
            assert shown == (after[0] - before[0], after[1] - before[1]), re.findall(
                "panal_tokens_total.*", served.metrics()
            )
            answer = " ".join(str(number) for number in range(1, 21)) if words == "count 20" else words
            assert shown[1] == len(answer.encode()), "ids that were seen beat the engine's word"
            assert record["estimated"] is False


def test_what_nobody_counted_is_an_estimate_and_says_so(served: Served) -> None:
    """Tool calls come without token ids here, and this engine never tells its usage."""
    for told, estimated in (("", False), ("omit", True)):
        body = wire(say("use a tool", **({"usage": told} if told else {}))) | {"tools": TOOLS}
        events = served.events("/v1/chat/completions", body | {"stream_options": {"include_usage": True}})
        last = json.loads(events[-2])
        record = served.record_of(last["id"])
        shown = (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"])
        assert shown == (record["prompt_tokens"], record["completion_tokens"])
        assert min(shown) > 0
        assert record["estimated"] is estimated


def test_p11_two_calls_come_as_they_are_made(served: Served) -> None:
    """The official client assembles both; the first argument is there before the engine is done."""
    engine = served.engine()
    request = say("use a tool", delay_token_s=0.02) | {"tools": TOOLS}
    early: list[int] = []
    with served.client() as client, client.chat.completions.stream(**request) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.delta" and event.arguments and not early:
                early.append(engine.stats()["running"])
        streamed = stream.get_final_completion().choices[0]
    with served.client() as client:
        whole = client.chat.completions.create(**request).choices[0]
    assert early == [1]
    for choice in (streamed, whole):
        assert choice.finish_reason == "tool_calls"
        calls = [call for call in choice.message.tool_calls or [] if call.type == "function"]
        assert [(call.id, call.function.name) for call in calls] == [
            ("call_echo_0", "weather"),
            ("call_echo_1", "time_now"),
        ]
        assert json.loads(calls[0].function.arguments) == {"city": "Zürich 🏔", "days": [1, 2]}
        assert calls[1].function.arguments == ""


@pytest.mark.parametrize("stream", [True, False])
def test_p15_no_field_is_lost_on_the_way(served: Served, stream: bool) -> None:
    """All fields reach the engine unchanged, ``x_reply`` reaches the client."""
    more: dict[str, Any] = {
        "response_format": {"type": "json_object"},
        "max_completion_tokens": 5000,
        "seed": 7,
        "logit_bias": {"50": -1.5},
        "top_k": 3,
        "x_test": {"a": [1]},
        "x_echo": {"echo_body": True, "extra": {"deep": ["é"]}},
    }
    body = wire(say("hi")) | more
    if stream:
        chunks = [json.loads(event) for event in served.events("/v1/chat/completions", body)[:-1]]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        text = "".join(delta.get("content") or "" for delta in deltas)
        extra = [delta["x_reply"] for delta in deltas if "x_reply" in delta]
    else:
        message = served.call("POST", "/v1/chat/completions", body).json["choices"][0]["message"]
        text, extra = message["content"], [message["x_reply"]]
    received = json.loads(text)
    assert {name: received[name] for name in body} == body
    assert extra == [{"deep": ["é"]}]


@pytest.mark.parametrize(
    "field", ["n_predict", "cache_salt", "chat_template", "priority", "lora_path", "api_base"]
)
def test_p15_a_field_that_cannot_be_honoured_is_named(served: Served, field: str) -> None:
    with served.client() as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**say("hi") | {"extra_body": {field: "1"}})
    assert refused.value.param == field


def test_p40_invented_names_make_no_series(served: Served) -> None:
    """2,000 random model names, as many random paths, and 200 random users."""
    random_words = random.Random(40)
    words = [f"{random_words.getrandbits(64):x}" for _ in range(2000)]
    mark = "someone@example.com"

    def ask(number: int) -> None:
        word = words[number]
        body = {"model": f"m-{word}", "messages": [{"role": "user", "content": "x"}]}
        assert served.call("POST", "/v1/chat/completions", body).status == 404
        assert served.call("GET", f"/v1/{word}?{word}=1").status == 404
        if number % 10 == 0:
            user = wire(say("x")) | {"user": f"{word}-{mark}"}
            assert served.call("POST", "/v1/chat/completions", user).status == 200

    ask(0)
    until(lambda: ask_known(served), 10.0, "the model is known to the metrics")
    served.until_idle()
    before = series(served)
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(ask, number) for number in range(1, 2000)]:
            done.result()
    served.until_idle()
    after = series(served)
    assert after - before == set()
    text = served.metrics()
    assert not any(part in text for part in (*words, mark, served.installation.key, "127.0.0.1"))
    assert 'model="other"' in text


def test_p40_a_gauge_that_is_zero_again_shows_it(served: Served) -> None:
    reader = Reader(served, "chat", say("count 100", delay_token_s=0.2) | {"stream": True})
    until(lambda: served.gauge("panal_streams") == 1.0, 10.0, "one stream")
    reader.leave()
    served.until_idle()
    assert (served.gauge("panal_streams"), served.gauge("panal_requests_in_flight")) == (0.0, 0.0)


def ask_known(served: Served) -> bool:
    """Ask once; whether the model has series of its own."""
    assert served.call("POST", "/v1/chat/completions", wire(say("x"))).status == 200
    return 'outcome="ok",route="chat"' in served.metrics() and 'model="echo"' in served.metrics()


def usage(served: Served) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = served.admin().get("/api/v1/usage", limit=200)["items"]
    return items


def tokens(served: Served) -> tuple[int, int]:
    """Prompt and completion tokens of all models, as they are scraped."""
    text = served.metrics()

    def count(kind: str) -> int:
        found = re.findall(rf'^panal_tokens_total{{kind="{kind}",model="\w+"}} (\S+)$', text, re.M)
        return sum(int(float(number)) for number in found)

    return count("prompt"), count("completion")


def series(served: Served) -> set[str]:
    """Names and labels of everything that is scraped."""
    return {line.rpartition(" ")[0] for line in served.metrics().splitlines() if not line.startswith("#")}
