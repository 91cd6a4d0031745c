"""The spans of a finished request: request, admission, and each attempt (docs/traces.md)."""

from collections.abc import Callable, Mapping, Sequence

from panal.core.clock import Clock
from panal.core.errors import ModelNotFound, NodeLeaving
from panal.core.requests import InferenceRequest, Route
from panal.dispatch.outcome import WARM_UP, AttemptLog, Finished
from panal.ledger.values import AttemptOutcome
from panal.telemetry.traces import (
    Moments,
    Span,
    SpanEvent,
    SpanLink,
    TraceContext,
    Value,
    context_for,
    span_id_of,
)

OPERATIONS = {Route.CHAT: "chat", Route.COMPLETIONS: "text_completion", Route.EMBEDDINGS: "embeddings"}
"""Values of ``gen_ai.operation.name`` in OpenTelemetry's GenAI conventions."""


class RequestSpans:
    """Gives attempts their ``traceparent``, and spans to ``put`` when the request is over."""

    def __init__(
        self,
        put: Callable[[Sequence[Span]], None],
        clock: Clock,
        ratio: float,
        counts: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """``counts``: how many spans were ``sent`` and ``lost`` so far."""
        self.counts = counts
        self._put = put
        self._clock = clock
        self._ratio = ratio

    def traceparent(self, request: InferenceRequest, attempt: str) -> str:
        """For the node, so that its spans hang below this attempt's."""
        return self._context(request).traceparent(span_id_of(attempt))

    def ended(self, finished: Finished) -> None:
        context = self._context(finished.request)
        if context.sampled:
            self._put(spans_of(finished, context, Moments(self._clock)))

    def _context(self, request: InferenceRequest) -> TraceContext:
        return context_for(request.request_id, request.traceparent, self._ratio)


def spans_of(finished: Finished, context: TraceContext, moments: Moments) -> list[Span]:
    """The request's span first, then its children in their order."""
    request = finished.request
    root_id = span_id_of(request.request_id)
    begun_s = moments.now_s - finished.total_s
    admitted_s = finished.attempts[0].opened_monotonic_s if finished.attempts else moments.now_s
    root = Span(
        name=f"{OPERATIONS[request.route]} {_model(finished)}".rstrip(),
        trace_id=context.trace_id,
        span_id=root_id,
        parent_id=context.parent_id,
        start_utc_ns=moments.utc_ns(begun_s),
        end_utc_ns=moments.utc_ns(moments.now_s),
        kind="server",
        error=finished.error.code if finished.error is not None else "",
        attributes=_request_attributes(finished),
        events=_events(finished, moments, begun_s),
    )
    admission = Span(
        name="admission",
        trace_id=context.trace_id,
        span_id=span_id_of(f"{request.request_id} admission"),
        parent_id=root_id,
        start_utc_ns=root.start_utc_ns,
        end_utc_ns=moments.utc_ns(admitted_s),
        error="" if finished.attempts or finished.error is None else finished.error.code,
        attributes={"panal.queue.seconds": round(finished.queued_s, 6)},
    )
    return [root, admission, *(_attempt(finished, log, context, moments) for log in finished.attempts)]


def _attempt(finished: Finished, log: AttemptLog, context: TraceContext, moments: Moments) -> Span:
    request_id = finished.request.request_id
    meant = log.outcome is AttemptOutcome.HANDED_OVER or log.cause == WARM_UP
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": OPERATIONS[finished.request.route],
        "gen_ai.request.model": finished.request.model,
        "panal.attempt.number": log.number,
        "panal.attempt.outcome": log.outcome.value,
        "panal.node.id": log.node_id,
        "panal.node.name": log.node_name,
        "gen_ai.usage.output_tokens": log.tokens,
    }
    if log.cause and log.cause != WARM_UP:
        attributes["error.type"] = log.cause
    links = []
    if (before := _before(finished, log)) is not None:
        about: dict[str, Value] = {"panal.continues": _continuation(log)}
        links.append(SpanLink(span_id_of(f"{request_id}.{before.number}"), about))
    return Span(
        name=f"attempt {log.number}",
        trace_id=context.trace_id,
        span_id=span_id_of(f"{request_id}.{log.number}"),
        parent_id=span_id_of(request_id),
        start_utc_ns=moments.utc_ns(log.opened_monotonic_s),
        end_utc_ns=moments.utc_ns(log.opened_monotonic_s + log.duration_s),
        kind="client",
        error="" if meant else log.cause,
        attributes=attributes,
        links=links,
    )


def _before(finished: Finished, log: AttemptLog) -> AttemptLog | None:
    """The attempt that this one follows; a warm-up is followed by none."""
    earlier = [each for each in finished.attempts if each.number < log.number and not each.warm_up]
    return earlier[-1] if earlier else None


def _continuation(log: AttemptLog) -> str:
    """What an attempt after the first is: warm_up (it only reads), restart (the client saw nothing),
    hand_over, or resume."""
    if log.warm_up:
        return "warm_up"
    if not log.goes_on_after:
        return "restart"
    return "hand_over" if log.goes_on_after == NodeLeaving.code else "resume"


def _events(finished: Finished, moments: Moments, begun_s: float) -> list[SpanEvent]:
    events = []
    if finished.first_token_s is not None:
        events.append(SpanEvent("first token", moments.utc_ns(begun_s + finished.first_token_s)))
    for log in finished.attempts:
        before = _before(finished, log)
        if before is None:
            continue
        about: dict[str, Value] = {"panal.attempt.number": log.number, "panal.cause": before.cause or "ok"}
        events.append(SpanEvent(_continuation(log), moments.utc_ns(log.opened_monotonic_s), about))
    return events


def _request_attributes(finished: Finished) -> dict[str, Value]:
    request = finished.request
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": OPERATIONS[request.route],
        "gen_ai.provider.name": "panal",
        "gen_ai.response.id": request.response_id,
        "gen_ai.usage.input_tokens": finished.shown.prompt_tokens,
        "gen_ai.usage.output_tokens": finished.shown.completion_tokens,
        "panal.request.id": request.request_id,
        "panal.tenant.id": request.principal.tenant_id,
        "panal.project.id": request.principal.project_id,
        "panal.outcome": finished.outcome.value,
        "panal.stream": request.stream,
        "panal.usage.estimated": finished.shown.estimated,
    }
    if model := _model(finished):
        attributes["gen_ai.request.model"] = model
    if request.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = request.max_tokens
    if finished.error is not None:
        attributes["error.type"] = finished.error.code
    return attributes


def _model(finished: Finished) -> str:
    """The model's name where there is such a model: what is none may be anything, even a prompt."""
    return "" if isinstance(finished.error, ModelNotFound) else finished.request.model
