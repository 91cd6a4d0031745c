"""OTLP over HTTP: spans as protobuf to a collector. Loaded only where traces are switched on.

The messages are OpenTelemetry's own (``opentelemetry-proto``); docs/adr/0017-traces.md says why its SDK
is not used.
"""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

from panal.core.proxies import is_loopback
from panal.telemetry.span_export import CollectorError
from panal.telemetry.traces import Span, Value

SEND_S_MAX = 3.0
PIECE_SPANS = 8
BREATH_S = 0.0002
"""After each piece the interpreter is left to the event loop, which would else wait for whole batches."""
ANSWER_BYTES_MAX = 64 * 1024
AGAIN = frozenset({408, 429, 502, 503, 504})
"""Statuses after which a batch may be sent again."""

_KINDS = {
    "internal": WireSpan.SPAN_KIND_INTERNAL,
    "server": WireSpan.SPAN_KIND_SERVER,
    "client": WireSpan.SPAN_KIND_CLIENT,
}


class Collector:
    """One collector at one address. ``headers`` may hold its credential; redirects are not followed."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], resource: Mapping[str, Value]) -> None:
        self._url = traces_url(endpoint)
        self._headers = {**headers, "content-type": "application/x-protobuf"}
        self._resource = Resource(attributes=_attributes(resource))
        handlers: list[Any] = [_NoRedirect]
        if is_loopback(urlsplit(endpoint).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))  # this machine is no proxy's business
        self._opener = urllib.request.build_opener(*handlers)

    def send(self, spans: Sequence[Span]) -> int:
        """See span_export.Send."""
        request = urllib.request.Request(self._url, self.encoded(spans), self._headers)  # noqa: S310 - checked
        try:
            with self._opener.open(request, timeout=SEND_S_MAX) as answer:
                return _refused(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                raise CollectorError(f"status {error.code}", again=error.code in AGAIN) from error
        except (OSError, http.client.HTTPException) as error:
            raise CollectorError(type(error).__name__, again=True) from error

    def encoded(self, spans: Sequence[Span]) -> bytes:
        """The bytes of an ExportTraceServiceRequest."""
        scope = ScopeSpans()
        scope.scope.name = "panal"
        for at in range(0, len(spans), PIECE_SPANS):
            scope.spans.extend([_wire(span) for span in spans[at : at + PIECE_SPANS]])
            time.sleep(BREATH_S)
        whole = ExportTraceServiceRequest(
            resource_spans=[ResourceSpans(resource=self._resource, scope_spans=[scope])]
        )
        return whole.SerializeToString()


def traces_url(endpoint: str) -> str:
    """The full address: OTLP's own path where the setting names none."""
    return endpoint.rstrip("/") + "/v1/traces" if urlsplit(endpoint).path in ("", "/") else endpoint


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_given: Any, **_named: Any) -> None:
        """A credential goes to the address that was set, and nowhere else."""
        return


def _wire(span: Span) -> WireSpan:
    trace_id = bytes.fromhex(span.trace_id)
    made = WireSpan(
        name=span.name,
        trace_id=trace_id,
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id),
        kind=_KINDS[span.kind],
        start_time_unix_nano=span.start_utc_ns,
        end_time_unix_nano=max(span.start_utc_ns, span.end_utc_ns),
        attributes=_attributes(span.attributes),
        events=[
            WireSpan.Event(
                name=event.name, time_unix_nano=event.utc_ns, attributes=_attributes(event.attributes)
            )
            for event in span.events
        ],
        links=[
            WireSpan.Link(
                trace_id=trace_id,
                span_id=bytes.fromhex(link.span_id),
                attributes=_attributes(link.attributes),
            )
            for link in span.links
        ],
    )
    if span.error:
        made.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=span.error))
    return made


def _attributes(values: Mapping[str, Value]) -> list[KeyValue]:
    made = []
    for key, value in values.items():
        pair = KeyValue(key=key)
        if isinstance(value, bool):
            pair.value.bool_value = value
        elif isinstance(value, int):
            pair.value.int_value = value
        elif isinstance(value, float):
            pair.value.double_value = value
        else:
            pair.value.string_value = value
        made.append(pair)
    return made


def _refused(answer: bytes) -> int:
    """How many spans the collector says it did not take; 0 where its answer cannot be read."""
    try:
        return int(ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans)
    except DecodeError:
        return 0
