"""What users of similar systems suffer from, in streams: each test is one case of the research, by number."""

import base64
import json
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.support.asking import Reader, say, wire
from tests.support.installation import until
from tests.support.relay import relay
from tests.support.served import GONE_S_MAX, Served

MIXED = "añ 日本語 😀 👩‍👩‍👧‍👦 e\u0301 שלום 🏔"
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
RELAY_IDLE_S = 12.0
"""A little more than the 10 s between two comments, which this gateway leaves at the default."""


@pytest.mark.parametrize("fault", ["stop_after", "close_after"])
def test_p01_a_broken_stream_never_looks_finished(served: Served, fault: str) -> None:
    """Nobody else has the model, so the answer cannot go on: three chunks, an error event, and the end."""
    request = say("abcdef", **{fault: 3})
    pieces: list[str] = []

    def by_client() -> openai.APIError:
        with served.client() as client, pytest.raises(openai.APIError) as broken:
            stream = client.chat.completions.create(**request, stream=True)
            pieces.extend(chunk.choices[0].delta.content or "" for chunk in stream)
        return broken.value

    def whole() -> int:
        with served.client() as client, pytest.raises(openai.InternalServerError) as failed:
            client.chat.completions.create(**request)
        return failed.value.status_code

    with ThreadPoolExecutor() as pool:
        events = pool.submit(served.events, "/v1/chat/completions", wire(request))
        error, status = pool.submit(by_client), pool.submit(whole)
        broken = error.result()
        seen = [event for event in events.result() if not event.startswith(":")]
        assert status.result() == 502
    assert "".join(pieces) == "abc"
    assert broken.code == "answer_cut"
    assert isinstance(broken.body, dict)
    assert broken.body["message"] == broken.message
    chunks = [json.loads(event) for event in seen]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]) == "abc"
    assert not any(c["choices"][0].get("finish_reason") for c in chunks[:-1])
    assert {"type", "code", "message"} <= chunks[-1]["error"].keys()
    record = served.record_of(chunks[0]["id"])
    assert (record["outcome"], record["error_code"], record["completion_tokens"]) == ("cut", "answer_cut", 3)


@pytest.mark.parametrize("lie", ["", "cumulative", "omit"])
def test_p02_usage_is_shown_to_who_asks_and_counted_always(served: Served, lie: str) -> None:
    """Both routes, each with and without ``include_usage``; also with engines that tell usage otherwise."""
    counted: dict[str, set[tuple[int, int]]] = {"chat": set(), "completions": set()}
    for route, counts in counted.items():
        for include in (False, True):
            prompt: dict[str, Any] = (
                {"messages": [{"role": "user", "content": "héllo"}]}
                if route == "chat"
                else {"prompt": "héllo"}
            )
            body = {"model": "echo", **prompt, **({"x_echo": {"usage": lie}} if lie else {})}
            if include:
                body["stream_options"] = {"include_usage": True}
            path = "/v1/chat/completions" if route == "chat" else "/v1/completions"
            events = served.events(path, body)
            assert events[-1] == "[DONE]"
            chunks = [json.loads(event) for event in events[:-1]]
            finishes = [n for n, c in enumerate(chunks) if c["choices"] and c["choices"][0]["finish_reason"]]
            usages = [number for number, chunk in enumerate(chunks) if chunk.get("usage")]
            empty = [number for number, chunk in enumerate(chunks) if not chunk["choices"]]
            assert len(finishes) == 1
            assert usages == empty == ([len(chunks) - 1] if include else [])
            assert finishes[0] == len(chunks) - 1 - include
            record = served.record_of(chunks[0]["id"])
            counts.add((record["prompt_tokens"], record["completion_tokens"]))
    for route, completion in (("chat", 6), ("completions", 7)):
        assert len(counted[route]) == 1, counted
        prompt_tokens, completion_tokens = counted[route].pop()
        assert completion_tokens == completion
        assert prompt_tokens > 0


@pytest.mark.timeout(180)
def test_p03_silence_does_not_kill_a_healthy_request(served: Served) -> None:
    """Before the first token and in the middle, through a relay that drops what is idle."""
    early = say("abc", delay_first_s=14)
    middle = say("ab", delay_token_s=14)
    asked = served.installation.http_port

    def read(request: dict[str, Any]) -> str:
        with relay(asked, RELAY_IDLE_S) as between, served.client(port=between.port) as client:
            chunks = list(client.chat.completions.create(**request, stream=True))
            assert between.dropped == 0
        assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    with ThreadPoolExecutor() as pool:
        texts = [pool.submit(read, request) for request in (early, middle)]
        wires = [
            pool.submit(served.events, "/v1/chat/completions", wire(request)) for request in (early, middle)
        ]
        assert [text.result() for text in texts] == ["abc", "ab"]
        for stream in wires:
            comments = [event for event in stream.result() if event.startswith(":")]
            assert comments
            assert "[DONE]" in stream.result()


def test_p05_a_reader_that_leaves_stops_the_engine(served: Served) -> None:
    """Streamed, whole, on both text routes, and with an engine that hangs at that moment."""
    engine = served.engine()
    slow: list[tuple[str, dict[str, Any]]] = [
        ("chat", say("count 100", delay_token_s=0.2) | {"stream": True}),
        ("chat", say("count 100", delay_token_s=0.2)),
        ("chat", say("count 100", freeze_after=5) | {"stream": True}),
        ("completions", {"model": "echo", "prompt": "count 100", "stream": True}),
    ]
    slow[-1][1]["extra_body"] = {"x_echo": {"delay_token_s": 0.2}}
    for route, request in slow:
        before = engine.stats()["cancelled"]
        reader = Reader(served, route, request)
        until(lambda: engine.stats()["running"] == 1, 10.0, "the engine works")
        reader.leave()
        engine.until_cancelled(before)
        until(served.is_idle, GONE_S_MAX, "in-flight counters are back to 0")
        with served.client() as client:
            assert client.chat.completions.create(**say("next")).choices[0].message.content == "next"
    until(lambda: left(served) >= len(slow), 15.0, "the outcomes are recorded")
    log = (served.installation.home / "logs" / "gateway.log").read_text()
    assert log.count('"outcome":"client_gone"') >= len(slow)


def left(served: Served) -> int:
    records = served.admin().get("/api/v1/usage", limit=100)["items"]
    return sum(record["outcome"] == "client_gone" for record in records)


def test_p06_leaving_before_the_first_token_stops_the_engine(served: Served) -> None:
    """(a) of the case, streamed or not; (b), in the queue, is in test_pains_limits.py; (c), a model that is
    being loaded, comes with models that are loaded on demand."""
    engine = served.engine()
    for stream in (True, False):
        before = engine.stats()["cancelled"]
        reader = Reader(served, "chat", say("abc", delay_first_s=30) | {"stream": stream})
        until(lambda: engine.stats()["running"] == 1, 10.0, "the engine has the prompt")
        reader.leave()
        engine.until_cancelled(before)
        until(served.is_idle, GONE_S_MAX, "in-flight counters are back to 0")


@pytest.mark.parametrize("crlf", [False, True], ids=["lf", "crlf"])
def test_p12_letters_survive_being_cut_anywhere(served: Served, crlf: bool) -> None:
    """The engine sends its stream byte by byte, one segment each; batch files are left to the batch API."""
    knobs = {"split_bytes": 1, "crlf": crlf}
    tools = say("use a tool", **knobs) | {"tools": TOOLS}
    with served.client() as client:
        streamed = client.chat.completions.create(**say(MIXED, **knobs), stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
        whole = client.chat.completions.create(**say(MIXED, **knobs)).choices[0].message.content
        completion = client.completions.create(model="echo", prompt=MIXED, extra_body={"x_echo": knobs})
        called = client.chat.completions.create(**tools).choices[0].message.tool_calls
        with client.chat.completions.stream(**tools) as stream:
            assembled = stream.get_final_completion().choices[0].message.tool_calls
    assert text.encode() == MIXED.encode()
    assert whole == MIXED
    assert completion.choices[0].text == "\n" + MIXED
    for calls in (called, assembled):
        assert calls is not None
        assert calls[0].type == "function"
        assert calls[0].function.arguments == '{"city": "Zürich 🏔", "days": [1, 2]}'
    for event in served.events("/v1/chat/completions", wire(say(MIXED, **knobs))):
        assert "\\ufffd" not in event


def test_p14_the_response_names_the_model_as_the_client_did(served: Served) -> None:
    """On every route, streamed or not; aliases and two gateway processes are in test_pains_names.py."""
    with served.client() as client:
        assert client.chat.completions.create(**say("x")).model == "echo"
        assert client.completions.create(model="echo", prompt="x").model == "echo"
        assert client.embeddings.create(model="echo", input="x").model == "echo"
        assert {c.model for c in client.chat.completions.create(**say("x"), stream=True)} == {"echo"}
        assert {c.model for c in client.completions.create(model="echo", prompt="x", stream=True)} == {"echo"}
        assert client.models.retrieve("echo").id == "echo"


def test_p14_a_changed_right_holds_on_every_route_within_two_seconds(served: Served) -> None:
    """A key that is made, limited and taken back, without any restart."""
    made = served.admin().post("/api/v1/keys", {"name": "p14"})
    bodies = {
        "/v1/chat/completions": {"model": "echo", "messages": [{"role": "user", "content": "x"}]},
        "/v1/completions": {"model": "echo", "prompt": "x"},
        "/v1/embeddings": {"model": "echo", "input": "x"},
    }

    def answers(status: int) -> bool:
        replies = [served.call("POST", path, body, key=made["secret"]) for path, body in bodies.items()]
        return all(reply.status == status for reply in replies)

    until(lambda: answers(200), 2.0, "a new key opens every route")
    served.admin().delete(f"/api/v1/keys/{made['view']['id']}")
    until(lambda: answers(401), 2.0, "a revoked key opens none")


def test_p17_all_encodings_of_an_embedding_are_the_same_vector(served: Served) -> None:
    """The official client asks for base64 by default; the engine knows floats only."""
    texts = ["first", "zweiter ü"]
    with served.client() as client:
        default = client.embeddings.create(model="echo", input=texts)
        floats = client.embeddings.create(model="echo", input=texts, encoding_format="float")
        coded = client.embeddings.create(model="echo", input=texts, encoding_format="base64")
        with pytest.raises(openai.BadRequestError) as unknown:
            client.embeddings.create(model="echo", input="x", extra_body={"encoding_format": "int8"})
        with pytest.raises(openai.BadRequestError) as shorter:
            client.embeddings.create(model="echo", input="x", dimensions=3)
        assert len(client.embeddings.create(model="echo", input="x", dimensions=8).data[0].embedding) == 8
    assert unknown.value.param == "encoding_format"
    assert shorter.value.param == "dimensions"
    assert default.usage.prompt_tokens == sum(len(text.encode()) for text in texts)
    for place in range(len(texts)):
        vector = floats.data[place].embedding
        assert len(vector) == 8
        assert default.data[place].embedding == pytest.approx(vector, rel=1e-6)
        text = coded.data[place].embedding
        assert isinstance(text, str)
        assert list(struct.unpack("<8f", base64.b64decode(text))) == default.data[place].embedding
    plain = {"model": "echo", "input": "first"}
    for name, given in (
        ("default", {}),
        ("null", {"encoding_format": None}),
        ("float", {"encoding_format": "float"}),
    ):
        reply = served.call("POST", "/v1/embeddings", plain | given)
        assert reply.status == 200, (name, reply.body)
        assert reply.json["data"][0]["embedding"] == floats.data[0].embedding
    reply = served.call("POST", "/v1/embeddings", plain | {"encoding_format": "base64"})
    assert reply.json["data"][0]["embedding"] == coded.data[0].embedding


def test_p25_bad_questions_cost_good_ones_nothing(served: Served) -> None:
    """The engine's 4xx is the client's: passed on with its body, tried nowhere else, no mark on the node."""
    statuses = [400, 401, 404, 413, 422, 429]
    attempts_before = attempts(served)

    def ask(number: int) -> None:
        status = statuses[number % len(statuses)]
        stream = {"stream": True} if number % 2 else {}
        reply = served.call("POST", "/v1/chat/completions", wire(say("x", status=status), **stream))
        assert reply.status == status
        assert reply.error["code"] == status
        assert reply.error["message"] == "as asked"

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(ask, number) for number in range(50)]:
            done.result()
        with served.client() as client:
            assert client.chat.completions.create(**say("good")).choices[0].message.content == "good"
    assert attempts(served) == attempts_before + 51


def attempts(served: Served) -> int:
    return int(sum(float(n) for n in re.findall(r"^panal_attempts_total\S* (\S+)$", served.metrics(), re.M)))
