"""Spans are sent in batches, or lost and counted; nobody waits for a collector."""

import socket
import threading
import time
from collections.abc import Sequence

import pytest

from panal.core.errors import SettingsError
from panal.core.settings import TelemetrySettings
from panal.telemetry.otlp import Collector, traces_url
from panal.telemetry.span_export import BATCH_SPANS_MAX, CollectorError, SpanExport
from panal.telemetry.traces import Span, SpanEvent, SpanLink
from panal.telemetry.tracing import span_export
from tests.support.collector import collecting
from tests.support.installation import until

RESOURCE = {"service.name": "panal-test"}


def spans(count: int, **changes: object) -> list[Span]:
    return [
        Span("a", "1" * 32, f"{number + 1:016x}", "", 1_000, 2_000, **changes)  # type: ignore[arg-type]
        for number in range(count)
    ]


def sender(endpoint: str, pauses_s: Sequence[float] = (), queue: int = 8192) -> SpanExport:
    return SpanExport(
        Collector(endpoint, {}, RESOURCE).send, pause_s=0.02, retry_pauses_s=pauses_s, queue_spans_max=queue
    )


def test_every_field_arrives() -> None:
    whole = Span(
        name="attempt 2",
        trace_id="ab" * 16,
        span_id="cd" * 8,
        parent_id="ef" * 8,
        start_utc_ns=1_800_000_000_000_000_001,
        end_utc_ns=1_800_000_001_000_000_002,
        kind="client",
        error="node_lost",
        attributes={"text": "é", "whole": 2**40, "part": 0.5, "truth": True},
        events=[SpanEvent("resume", 1_800_000_000_500_000_000, {"panal.cause": "node_lost"})],
        links=[SpanLink("12" * 8, {"panal.continues": "resume"})],
    )
    with collecting() as collector:
        export = sender(collector.endpoint)
        export.start()
        export.put([whole])
        until(lambda: collector.spans, 10.0, "a span")
        export.close()
    (seen,) = collector.spans
    assert (seen.service, seen.name, seen.trace_id) == ("panal-test", whole.name, whole.trace_id)
    assert (seen.span_id, seen.parent_id) == (whole.span_id, whole.parent_id)
    assert (seen.start_utc_ns, seen.end_utc_ns) == (whole.start_utc_ns, whole.end_utc_ns)
    assert (seen.error, seen.attributes) == ("node_lost", whole.attributes)
    assert seen.events == [("resume", {"panal.cause": "node_lost"})]
    assert seen.links == [("12" * 8, {"panal.continues": "resume"})]
    assert (export.sent, export.lost) == (1, 0)


def test_a_collector_on_this_machine_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with collecting() as collector:
        assert Collector(collector.endpoint, {}, RESOURCE).send(spans(1)) == 0
        until(lambda: len(collector.spans) == 1, 10.0, "the span")


def test_many_spans_go_in_batches_and_the_rest_when_the_program_ends() -> None:
    with collecting() as collector:
        export = SpanExport(Collector(collector.endpoint, {}, RESOURCE).send, pause_s=60.0)
        export.start()
        export.put(spans(BATCH_SPANS_MAX + 88))
        until(lambda: len(collector.spans) >= BATCH_SPANS_MAX, 10.0, "a batch")
        export.close(10.0)
    assert len(collector.spans) == export.sent == BATCH_SPANS_MAX + 88
    assert len(collector.bodies) == 2


def test_an_unreachable_collector_loses_spans_counts_them_and_keeps_nobody_waiting() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        export = sender(f"http://127.0.0.1:{closed.getsockname()[1]}", pauses_s=(0.01,), queue=100)
        export.start()
        begun_s = time.monotonic()
        for _ in range(50):
            export.put(spans(10))
        assert time.monotonic() - begun_s < 1.0
        until(lambda: export.lost == 500, 20.0, "all are counted as lost")
        export.close()
    assert export.sent == 0


def test_a_collector_that_never_answers_holds_up_neither_queue_nor_end() -> None:
    let_go = threading.Event()

    def silent(_batch: Sequence[Span]) -> int:
        let_go.wait(30.0)
        raise CollectorError("too late", again=False)

    export = SpanExport(silent, queue_spans_max=10, pause_s=0.01)
    export.start()
    export.put(spans(4))
    until(lambda: not export._queue, 10.0, "the thread is inside the collector")
    export.put(spans(50))
    assert export.lost == 40
    begun_s = time.monotonic()
    export.close(0.2)
    assert time.monotonic() - begun_s < 5.0
    let_go.set()


@pytest.mark.parametrize(("status", "tries"), [(503, 3), (429, 3), (400, 1), (401, 1)])
def test_only_what_may_pass_is_tried_again(status: int, tries: int) -> None:
    with collecting() as collector:
        collector.status = status
        export = sender(collector.endpoint, pauses_s=(0.01, 0.01))
        export.start()
        export.put(spans(3))
        until(lambda: export.lost == 3, 10.0, "the batch is given up")
        export.close()
    assert len(collector.bodies) == tries


def test_what_a_collector_rejects_of_a_batch_is_lost() -> None:
    with collecting() as collector:
        collector.rejects = 2
        export = sender(collector.endpoint)
        export.start()
        export.put(spans(5))
        until(lambda: export.sent == 3, 10.0, "three are taken")
        export.close()
    assert export.lost == 2


def test_a_collector_that_comes_back_gets_spans_again() -> None:
    with collecting() as collector:
        collector.status = 503
        export = sender(collector.endpoint)
        export.start()
        export.put(spans(2))
        until(lambda: export.lost == 2, 10.0, "two are lost")
        collector.status = 200
        export.put(spans(2))
        until(lambda: export.sent == 2, 10.0, "two arrive")
        export.close()


def test_headers_of_the_settings_are_sent() -> None:
    with collecting() as collector:
        settings = TelemetrySettings(
            traces_endpoint=collector.endpoint, traces_headers=("authorization = Bearer a=b", "x-scope=1")
        )
        export = span_export(settings, "panal-test", "gw_1", "0")
        assert export is not None
        export.start()
        export.put(spans(1))
        export.close(10.0)
    assert collector.headers[0]["authorization"] == "Bearer a=b"
    assert collector.headers[0]["x-scope"] == "1"


@pytest.mark.parametrize("header", ["nothing", "=value", "a=b\r\nx: y"])
def test_a_wrong_header_stops_the_start_without_showing_it(header: str) -> None:
    settings = TelemetrySettings(traces_endpoint="http://127.0.0.1:1", traces_headers=(header,))
    with pytest.raises(SettingsError) as refused:
        span_export(settings, "panal-test", "gw_1", "0")
    assert "value" not in refused.value.message


def test_otlp_s_own_path_is_added_where_none_is_given() -> None:
    assert traces_url("http://a:4318") == traces_url("http://a:4318/") == "http://a:4318/v1/traces"
    assert traces_url("https://a/otlp/v1/traces") == "https://a/otlp/v1/traces"
