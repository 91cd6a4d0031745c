"""What users of similar systems suffer from when nodes come and go: one test for each case, by its number."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.support.asking import Asking, say, wire
from tests.support.installation import Program, until
from tests.support.served import Served
from tests.support.silent_engine import silent_engine

UP = ["--no-node"]
FIRST_TOKEN_S = 3.0
ENVIRONMENT = {"PANAL_GATEWAY__FIRST_TOKEN_S_MAX": str(FIRST_TOKEN_S)}


def only(served: Served, *names: str) -> None:
    """See that exactly these nodes with an echo engine serve."""
    for name, agent in served.agents.items():
        if name not in names and agent.runs:
            agent.program.stop()
    for name in names:
        if name not in served.agents:
            served.join(name, "--engine", "echo")
        elif not served.agents[name].runs:
            served.again(name)
    served.until_serving(*names)


@pytest.mark.parametrize("route", ["chat", "completions"])
def test_p04_failover_repeats_and_loses_nothing(served: Served, route: str) -> None:
    """The serving node is killed after "20"; another one goes on."""
    only(served, "one", "two")
    chunks: list[Any] = []
    knobs = {"x_echo": {"delay_token_s": 0.03}}
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "extra_body": knobs}
    killed = ""
    with served.client() as client:
        if route == "chat":
            stream = client.chat.completions.create(**say("count 50") | options)
        else:
            stream = client.completions.create(model="echo", prompt="count 50", **options)
        for chunk in stream:
            chunks.append(chunk)
            if not killed and "20" in text_of(chunks):
                killed = served.speaking()
                served.agents[killed].kill()
    numbers = " ".join(str(number) for number in range(1, 51))
    assert killed
    assert text_of(chunks) == (numbers if route == "chat" else "\n" + numbers)
    assert len({chunk.id for chunk in chunks}) == 1
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    if route == "chat":
        assert [choice.delta.role for choice in choices if choice.delta.role] == ["assistant"]
    usages = [chunk.usage for chunk in chunks if chunk.usage]
    assert len(usages) == 1
    assert usages[0].completion_tokens == len(text_of(chunks))
    record = served.record_of(chunks[0].id)
    assert record["completion_tokens"] == usages[0].completion_tokens
    assert record["prompt_tokens"] == usages[0].prompt_tokens
    assert usages[0].prompt_tokens < 50, "the prompt is counted once, and nothing of the answer with it"
    assert record["attempts"] == 2
    other = "two" if killed == "one" else "one"
    made = served.contributions(chunks[0].id)
    assert [each["node"] for each in made] == [served.agents[killed].node, served.agents[other].node]


def text_of(chunks: list[Any]) -> str:
    pieces = []
    for chunk in chunks:
        for choice in chunk.choices:
            delta = getattr(choice, "delta", None)
            pieces.append((choice.text if delta is None else delta.content) or "")
    return "".join(pieces)


def test_p13_a_resting_model_is_not_an_unknown_one(served: Served) -> None:
    only(served, "one")
    only(served)
    body = {"model": "echo", "messages": [{"role": "user", "content": "x"}]}
    with served.client() as client:
        with pytest.raises(openai.APIStatusError) as resting:
            client.chat.completions.create(**say("x"))
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(**say("x") | {"model": "never"})
        assert [model.id for model in client.models.list()] == ["echo"]
        assert client.models.retrieve("echo").id == "echo"
    assert isinstance(resting.value, openai.InternalServerError)
    assert (resting.value.status_code, resting.value.code) == (503, "no_replica_available")
    assert int(resting.value.response.headers["retry-after"]) >= 1
    assert unknown.value.code == "model_not_found"
    for stream in (False, True):
        reply = served.call("POST", "/v1/chat/completions", body | {"stream": stream})
        assert (reply.status, reply.error["code"]) == (503, "no_replica_available")
        assert "retry-after" in reply.headers
    for path, body in (("completions", {"prompt": "x"}), ("embeddings", {"input": "x"})):
        assert served.call("POST", f"/v1/{path}", {"model": "echo", **body}).status == 503
    ready = served.call("GET", "/ready", key=None)
    assert (ready.status, served.call("GET", "/health", key=None).status) == (503, 200)
    only(served, "one")
    with served.client() as client:
        assert client.chat.completions.create(**say("back")).choices[0].message.content == "back"


def test_p18_an_engine_that_never_answers_is_left_in_time(served: Served) -> None:
    """It takes the connection and sends nothing, not even headers, while its health looks good."""
    only(served, "one")
    good = served.agents["one"]
    with silent_engine() as engine:
        silent = served.agents.get("silent") or served.join("silent", "--engine-url", engine.url)
        try:
            served.until_serving("one", "silent")
            served.installation.run("nodes", "cordon", good.name)
            served.until_serving("silent")
            engine.silent.set()
            nowhere = served.call("POST", "/v1/chat/completions", wire(say("x")))
            assert nowhere.status == 504
            assert nowhere.error["code"] == "timeout"
            assert "first_token" in nowhere.error["message"]
            record = served.record_of(nowhere.headers["x-request-id"])
            assert (record["completion_tokens"], record["prompt_tokens"]) == (0, 0)
            with ThreadPoolExecutor() as pool:
                begun_s = time.monotonic()
                asked_before = engine.asked
                answer = pool.submit(served.call, "POST", "/v1/chat/completions", wire(say("served")))
                until(lambda: engine.asked > asked_before, 5.0, "the silent engine has the request")
                served.installation.run("nodes", "uncordon", good.name)
                reply = answer.result()
                total_s = time.monotonic() - begun_s
            assert reply.json["choices"][0]["message"]["content"] == "served"
            assert total_s < FIRST_TOKEN_S + 2.0
            made = served.contributions(reply.json["id"])
            assert [each["node"] for each in made] == [silent.node, good.node]
            assert made[0]["outcome"] == "timeout"
        finally:
            silent.program.stop()
            served.installation.run("nodes", "uncordon", good.name)


def test_p24_machines_of_one_name_are_two_nodes(served: Served) -> None:
    """Both agents run on this very machine: same host name, same machine id."""
    only(served, "one", "two")
    one, two = served.agents["one"], served.agents["two"]
    assert one.node != two.node
    assert one.name != two.name
    listed = {node["id"]: node for node in served.installation.run("nodes", "list")}
    assert listed[one.node]["liveness"] == listed[two.node]["liveness"] == "live"


def test_p24_a_copied_folder_is_refused_and_the_first_keeps_working(served: Served) -> None:
    only(served, "one")
    first = served.agents["one"]
    copy = first.home.parent / "copied"
    shutil.copytree(first.home, copy, ignore=shutil.ignore_patterns("*.lock", "logs"))
    asking = Asking(served)
    try:
        second = Program(["agent", "--engine", "echo"], {"PANAL_HOME": str(copy)})
        try:
            assert second.wait(60.0) != 0
            assert "Another machine runs an agent with this identity" in second.output
            assert "join again" in second.output
        finally:
            second.kill()
    finally:
        asking.stop()
    assert asking.failures == [], f"of {asking.count} requests"
    assert asking.count > 5
    assert first.runs

    def written() -> bool:
        events = served.admin().get("/api/v1/audit", limit=100)["items"]
        return any(
            event["action"] == "node.second_instance" and event["target"] == first.node for event in events
        )

    until(written, 10.0, "the audit says so")
    node_file = copy / "agent" / "node.json"
    node_file.unlink()
    joined = served.join("copied", "--engine", "echo")
    assert joined.node != first.node
    served.until_serving("one", "copied")
    joined.program.stop()


def test_p24_a_restarted_agent_is_not_taken_for_a_copy(served: Served) -> None:
    """Its predecessor was killed a moment ago, so its silence is not yet long."""
    only(served, "one")
    served.agents["one"].kill()
    served.again("one")
    served.until_serving("one")
    with served.client() as client:
        assert client.chat.completions.create(**say("again")).choices[0].message.content == "again"
