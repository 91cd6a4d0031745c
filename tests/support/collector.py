"""A collector of traces on this machine's loopback that keeps what it is sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass
class Seen:
    """One span as it arrived. ``service`` is the sender's service.name."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_utc_ns: int
    end_utc_ns: int
    error: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[tuple[str, dict[str, Any]]]


@dataclass
class FakeCollector:
    """``status`` other than 200 refuses every batch; ``rejects`` spans of each are said to be refused."""

    status: int = 200
    rejects: int = 0
    spans: list[Seen] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    endpoint: str = ""

    def of(self, trace_id: str) -> list[Seen]:
        return [span for span in self.spans if span.trace_id == trace_id]

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        assert path == "/v1/traces", path
        self.headers.append(headers)
        self.bodies.append(body)
        if self.status == 200:
            self.spans += decoded(body)


def decoded(body: bytes) -> list[Seen]:
    """The spans of an OTLP message."""
    found: list[Seen] = []
    for group in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = values(group.resource.attributes)["service.name"]
        found += [
            Seen(
                service=service,
                name=span.name,
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent_id=span.parent_span_id.hex(),
                start_utc_ns=span.start_time_unix_nano,
                end_utc_ns=span.end_time_unix_nano,
                error=span.status.message,
                attributes=values(span.attributes),
                events=[(event.name, values(event.attributes)) for event in span.events],
                links=[(link.span_id.hex(), values(link.attributes)) for link in span.links],
            )
            for scope in group.scope_spans
            for span in scope.spans
        ]
    return found


def values(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def collecting(port: int = 0) -> Iterator[FakeCollector]:
    """A collector that listens until the block ends."""
    made = FakeCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            answer = ExportTraceServiceResponse()
            if made.rejects:
                answer.partial_success.rejected_spans = made.rejects
            content = answer.SerializeToString()
            self.send_response(made.status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_given: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    made.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
