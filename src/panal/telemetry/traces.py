"""Traces: W3C trace context, and spans made after the fact from times that are known anyway.

Every id follows from a name: a trace's from its request's id, a span's from what it spans. Nothing has to be
remembered between the parts of a request, and whoever has a request id from a log finds its trace.
"""

import re
from hashlib import blake2b

import msgspec

from panal.core.clock import Clock

Value = str | int | float | bool

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SUFFIX = re.compile(r"[0-9a-v]{26}")
_RATIO_BITS = 56


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """Where a span belongs: its trace, the span above it (``""``: none), and whether it is recorded."""

    trace_id: str
    parent_id: str
    sampled: bool

    def traceparent(self, span_id: str) -> str:
        """What travels on, with ``span_id`` as the parent of what comes next."""
        return f"00-{self.trace_id}-{span_id}-{'01' if self.sampled else '00'}"


class SpanEvent(msgspec.Struct, gc=False):
    """A moment inside a span, UTC nanoseconds."""

    name: str
    utc_ns: int
    attributes: dict[str, Value] = {}


class SpanLink(msgspec.Struct, gc=False):
    """Another span of the same trace that has to do with this one."""

    span_id: str
    attributes: dict[str, Value] = {}


class Span(msgspec.Struct):
    """One span. ``kind``: internal | server | client. ``error`` is a stable code, empty where all went well.

    Attributes hold no prompt, no answer, no key and no address of a client.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_utc_ns: int
    end_utc_ns: int
    kind: str = "internal"
    error: str = ""
    attributes: dict[str, Value] = {}
    events: list[SpanEvent] = []
    links: list[SpanLink] = []


class Moments:
    """Turns monotonic seconds of the near past into UTC nanoseconds, by one look at both clocks."""

    __slots__ = ("_offset_s", "now_s")

    def __init__(self, clock: Clock) -> None:
        self.now_s = clock.monotonic_seconds()
        self._offset_s = clock.utc_seconds() - self.now_s

    def utc_ns(self, monotonic_s: float) -> int:
        return int((self._offset_s + monotonic_s) * 1e9)


def read_traceparent(text: str) -> TraceContext | None:
    """The context in a W3C ``traceparent``; None where it is missing or does not follow the rules."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, parent_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not trace_id.strip("0") or not parent_id.strip("0"):
        return None
    return TraceContext(trace_id, parent_id, bool(int(flags, 16) & 1))


def context_for(request_id: str, traceparent: str, ratio: float) -> TraceContext:
    """Where the spans of a request belong.

    A client's own context is kept, and its word on whether to record. Without one, the trace id is the
    128 bits of the request's id, and ``ratio`` of these (0 to 1) are recorded.
    """
    given = read_traceparent(traceparent)
    if given is not None:
        return given
    trace_id = trace_id_of(request_id)
    chosen = int(trace_id[-_RATIO_BITS // 4 :], 16) < ratio * (1 << _RATIO_BITS)
    return TraceContext(trace_id, "", chosen)


def trace_id_of(request_id: str) -> str:
    """32 hexadecimal digits: the number that the id's 26 characters are, or a digest of any other id."""
    digits = request_id.rpartition("_")[2]
    if _SUFFIX.fullmatch(digits) and (number := int(digits, 32) >> 2 & (1 << 128) - 1):
        return f"{number:032x}"
    return blake2b(request_id.encode(), digest_size=16).hexdigest()


def span_id_of(name: str) -> str:
    """16 hexadecimal digits that stand for a name, such as an attempt's."""
    return blake2b(name.encode(), digest_size=8).hexdigest()
