"""One request is one trace: gateway and agents, over the loss of an engine, and without a collector."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import installation_in
from tests.support.asking import say, wire
from tests.support.collector import FakeCollector, Seen, collecting
from tests.support.installation import free_ports, processes_naming, short_folder, until
from tests.support.served import Served

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CLIENTS_SPAN = "00f067aa0ba902b7"
PROMPT = "count 60"


@pytest.fixture(scope="module")
def collector() -> Iterator[FakeCollector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def traced(collector: FakeCollector) -> Iterator[Served]:
    with short_folder() as folder:
        environment = {"PANAL_TELEMETRY__TRACES_ENDPOINT": collector.endpoint}
        made = Served(installation_in(folder, ["--engine", "echo"], environment))
        try:
            made.installation.start()
            yield made
        finally:
            made.stop()


def ask(served: Served, body: dict[str, Any], traceparent: str = "") -> list[dict[str, Any]]:
    headers = {"traceparent": traceparent} if traceparent else {}
    reply = served.call("POST", "/v1/chat/completions", body | {"stream": True}, headers=headers)
    assert reply.status == 200, reply.body
    events = [line[6:] for line in reply.body.decode().split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def one(spans: list[Seen], name: str, parent: Seen | None = None) -> Seen:
    found = [
        span for span in spans if span.name == name and (parent is None or span.parent_id == parent.span_id)
    ]
    assert len(found) == 1, [span.name for span in spans]
    return found[0]


def test_an_answer_of_two_nodes_is_one_trace(traced: Served, collector: FakeCollector) -> None:
    """The engine of the first node is killed in the middle; another node says the rest."""
    other = traced.join("other", "--engine", "echo")
    until(lambda: len([n for n in traced.fleet().values() if n["state"] == "available"]) == 2, 30.0, "two")
    try:
        request = wire(say(PROMPT, close_after=10))
        chunks = ask(traced, request, f"00-{TRACE}-{CLIENTS_SPAN}-01")
        until(lambda: len(collector.of(TRACE)) >= 10, 20.0, "all spans")
    finally:
        other.program.stop()
    spans = collector.of(TRACE)
    root = one(spans, "chat echo")
    assert (root.service, root.parent_id) == ("panal-gateway", CLIENTS_SPAN)
    one(spans, "admission", root)
    first, second = one(spans, "attempt 1", root), one(spans, "attempt 2", root)
    assert first.error == "engine_failed"
    assert second.links == [(first.span_id, {"panal.continues": "resume"})]
    nodes = set()
    for attempt in (first, second):
        serving = one(spans, "serve echo", attempt)
        assert serving.service == "panal-agent"
        assert serving.attributes["panal.node.id"] == attempt.attributes["panal.node.id"]
        nodes.add(serving.attributes["panal.node.id"])
        for phase in ("prefill", "decode"):
            engine = one(spans, f"engine {phase}", serving)
            assert serving.start_utc_ns <= engine.start_utc_ns <= engine.end_utc_ns <= serving.end_utc_ns
    assert len(nodes) == 2
    assert len(spans) == 10
    record = traced.record_of(chunks[0]["id"])
    assert root.attributes["gen_ai.usage.output_tokens"] == record["completion_tokens"]
    assert root.attributes["gen_ai.usage.input_tokens"] == record["prompt_tokens"]


def test_without_a_traceparent_the_request_id_names_the_trace(
    traced: Served, collector: FakeCollector
) -> None:
    from panal.telemetry.traces import trace_id_of

    chunks = ask(traced, wire(say("hello")))
    trace = trace_id_of("req_" + chunks[0]["id"].removeprefix("chatcmpl-"))
    until(lambda: len(collector.of(trace)) == 6, 20.0, "all six spans")
    assert one(collector.of(trace), "chat echo").parent_id == ""


def test_an_unsampled_trace_is_not_recorded(traced: Served, collector: FakeCollector) -> None:
    unwanted, wanted = "a" * 32, "b" * 32
    ask(traced, wire(say("hello")), f"00-{unwanted}-{CLIENTS_SPAN}-00")
    ask(traced, wire(say("hello")), f"00-{wanted}-{CLIENTS_SPAN}-01")
    until(lambda: len(collector.of(wanted)) == 6, 20.0, "the other's spans")
    assert collector.of(unwanted) == []


def test_no_prompt_no_key_and_no_address_is_sent(traced: Served, collector: FakeCollector) -> None:
    secret = "the mole is in Toledo"
    trace = "c" * 32
    ask(traced, wire(say(secret)), f"00-{trace}-{CLIENTS_SPAN}-01")
    until(lambda: len(collector.of(trace)) == 6, 20.0, "all spans")
    everything = b"".join(collector.bodies)
    for word in (secret, traced.installation.key, traced.installation.admin_key, "127.0.0.1", "sk-panal"):
        assert word.encode() not in everything


def test_a_collector_that_is_away_costs_requests_nothing() -> None:
    """Nobody listens at its address: every request is answered, spans are lost and counted."""
    with short_folder() as folder:
        (port,) = free_ports(1)
        environment = {"PANAL_TELEMETRY__TRACES_ENDPOINT": f"http://127.0.0.1:{port}"}
        served = Served(installation_in(folder, ["--engine", "echo"], environment))
        try:
            served.installation.start()
            for _ in range(20):
                ask(served, wire(say("hello")))
            until(lambda: lost(served) == 60, 20.0, "the spans of twenty requests are lost")
            ask(served, wire(say("hello")))
            begun_s = time.monotonic()
            served.installation.stop()
            assert time.monotonic() - begun_s < 20.0
            assert processes_naming(str(served.installation.home)) == []
        finally:
            served.stop()


def lost(served: Served) -> float:
    lines = served.metrics().splitlines()
    (line,) = [line for line in lines if line.startswith('panal_trace_spans_total{outcome="lost"}')]
    return float(line.split()[-1])


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux what a process has loaded")
def test_off_is_really_off(traced: Served) -> None:
    """Programs without an endpoint have nothing of protobuf in memory; those with one do."""
    assert loads_protobuf(traced)
    with short_folder() as folder:
        served = Served(installation_in(folder, ["--engine", "echo"], {}))
        try:
            served.installation.start()
            ask(served, wire(say("hello")), f"00-{TRACE}-{CLIENTS_SPAN}-01")
            assert not loads_protobuf(served)
            assert "panal_trace_spans" not in served.metrics()
            for process in processes_naming(str(served.installation.home)):
                if "agent" in process.cmdline():
                    assert memory_bytes(process) < 80_000_000
        finally:
            served.stop()


def loads_protobuf(served: Served) -> bool:
    found = [
        "google/_upb" in Path(f"/proc/{process.pid}/maps").read_text()
        for process in processes_naming(str(served.installation.home))
        if {"agent", "gateway"} & set(process.cmdline())
    ]
    assert len(found) == 2
    assert len(set(found)) == 1
    return found[0]


def memory_bytes(process: psutil.Process) -> int:
    return int(process.memory_info().rss)
