"""The spans of one attempt on its node: the attempt, and the engine's prefill and decode below it."""

from collections.abc import Callable, Sequence

from panal.core.clock import Clock
from panal.node.attempt import Attempt
from panal.telemetry.traces import Moments, Span, TraceContext, Value, read_traceparent, span_id_of

OPERATIONS = {"chat": "chat", "completions": "text_completion", "embeddings": "embeddings"}
FINE = ("finished", "cancelled", "leaving")
"""Outcomes that are nobody's fault: a gateway cancels when its client has left or when it has moved on."""


class AttemptSpans:
    """Hears of each attempt that is over; only those are recorded whose gateway records them too."""

    def __init__(self, put: Callable[[Sequence[Span]], None], clock: Clock, node: str) -> None:
        self._put = put
        self._clock = clock
        self._node = node

    def over(self, attempt: Attempt) -> None:
        context = read_traceparent(attempt.run_message.traceparent)
        if context is not None and context.sampled:
            self._put(spans_of(attempt, context, self._node, Moments(self._clock)))


def spans_of(attempt: Attempt, context: TraceContext, node: str, moments: Moments) -> list[Span]:
    """The attempt's span first, then those of its engine."""
    run, times, counts = attempt.run_message, attempt.times, attempt.counts()
    operation: dict[str, Value] = {
        "gen_ai.operation.name": OPERATIONS.get(run.route, run.route[:40]),
        "gen_ai.request.model": run.model,
    }
    own_id = span_id_of(f"{run.attempt} {node}")
    begun_ns, ended_ns = moments.utc_ns(times.begun_s), moments.utc_ns(moments.now_s)
    whole = Span(
        name=f"serve {run.model}",
        trace_id=context.trace_id,
        span_id=own_id,
        parent_id=context.parent_id,
        start_utc_ns=begun_ns,
        end_utc_ns=ended_ns,
        kind="server",
        error="" if attempt.outcome in FINE else attempt.outcome,
        attributes={
            **operation,
            "gen_ai.usage.input_tokens": counts.prompt_tokens,
            "gen_ai.usage.output_tokens": counts.completion_tokens,
            "panal.attempt": run.attempt,
            "panal.attempt.outcome": attempt.outcome,
            "panal.node.id": node,
            "panal.resumed": run.emitted is not None,
        },
    )
    if times.asked_s is None:
        return [whole]

    def engine(phase: str, from_s: float, until_s: float, **more: Value) -> Span:
        return Span(
            name=f"engine {phase}",
            trace_id=context.trace_id,
            span_id=span_id_of(f"{run.attempt} {node} {phase}"),
            parent_id=own_id,
            start_utc_ns=moments.utc_ns(from_s),
            end_utc_ns=moments.utc_ns(until_s),
            kind="client",
            attributes=operation | more,
        )

    first_s = times.first_token_s
    prefill = engine("prefill", times.asked_s, moments.now_s if first_s is None else first_s)
    if first_s is None:
        return [whole, prefill]
    return [whole, prefill, engine("decode", first_s, max(first_s, times.last_token_s))]
