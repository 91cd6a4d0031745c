"""Hears of every request once at its start and once at its end: usage, metrics, one log line."""

import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from panal.core.errors import StoreError
from panal.core.requests import InferenceRequest
from panal.dispatch.outcome import WARM_UP, Finished
from panal.gateway.request_spans import RequestSpans
from panal.ledger.settlement import settle
from panal.ledger.values import Settlement
from panal.telemetry.logs import note
from panal.telemetry.metrics import GatewayMetrics

log = logging.getLogger("panal.gateway")


class Spool(Protocol):
    """Where settlements go before the answer's last bytes leave."""

    @property
    def full(self) -> bool: ...

    def append(self, settlement: Settlement) -> None:
        """Raises StoreError when it cannot be kept."""
        ...


class RequestEnded(msgspec.Struct, gc=False):
    """The fields of a request's line in the log."""

    action: str
    request_id: str
    route: str
    model: str
    outcome: str
    code: str
    nodes: str
    causes: str
    prompt_tokens: int
    completion_tokens: int
    queued_s: float
    first_token_s: float | None
    total_s: float


class RequestObserver:
    """Implements dispatch.dispatcher.Observer."""

    def __init__(
        self,
        spool: Spool,
        metrics: Callable[[], GatewayMetrics],
        request_came: Callable[[], None],
        spans: RequestSpans | None = None,
    ) -> None:
        """``spans`` None: no traces are made."""
        self._spool = spool
        self._metrics = metrics
        self._request_came = request_came
        self._spans = spans
        self.in_flight = 0
        self.streams = 0

    def started(self, request: InferenceRequest) -> Callable[[float, int], None]:
        """Raises StoreError while usage could not be recorded: such a request must not begin."""
        if self._spool.full:
            raise StoreError(
                "Usage cannot be recorded at the moment, so no request is taken. Try again later."
            )
        self.in_flight += 1
        self._request_came()
        if request.stream:
            self.streams += 1
        return self._metrics().of(request.route, request.own_model).itl.observe_several

    def ended(self, finished: Finished) -> None:
        """Record usage, count, and write one line."""
        request = finished.request
        self.in_flight -= 1
        if request.stream:
            self.streams -= 1
        self._count(finished)
        note(
            log,
            "request ended",
            RequestEnded(
                action="request_ended",
                request_id=request.request_id,
                route=request.route,
                model=request.own_model,
                outcome=finished.outcome,
                code=finished.code,
                nodes=" ".join([attempt.node_name for attempt in finished.attempts]),
                causes=" ".join([attempt.cause for attempt in finished.attempts if attempt.cause]),
                prompt_tokens=finished.shown.prompt_tokens,
                completion_tokens=finished.shown.completion_tokens,
                queued_s=round(finished.queued_s, 4),
                first_token_s=_rounded(finished.first_token_s),
                total_s=round(finished.total_s, 4),
            ),
        )
        self._spool.append(settlement_of(finished))
        if self._spans is not None:
            self._spans.ended(finished)

    def _count(self, finished: Finished) -> None:
        metrics = self._metrics()
        of = metrics.of(finished.request.route, finished.request.own_model)
        of.ended(finished.code)
        of.total.observe(finished.total_s)
        of.queue.observe(finished.queued_s)
        if finished.first_token_s is not None:
            of.ttft.observe(finished.first_token_s)
        if finished.shown.total_tokens:
            of.prompt_tokens.inc(finished.shown.prompt_tokens)
            of.completion_tokens.inc(finished.shown.completion_tokens)
        for attempt in finished.attempts:
            metrics.attempts[WARM_UP if attempt.warm_up else attempt.cause or "ok"].inc()
            if attempt.goes_on_after and attempt.speaks:
                metrics.resumes[attempt.goes_on_after].inc()
        if finished.lost:
            metrics.not_kept.inc()


def settlement_of(finished: Finished) -> Settlement:
    """The ledger's entries for a finished request."""
    return settle(
        finished.request,
        finished.outcome,
        finished.shown,
        [attempt.made() for attempt in finished.attempts],
        queued_us=round(finished.queued_s * 1_000_000),
        first_token_us=_us(finished.first_token_s),
        total_us=round(finished.total_s * 1_000_000),
        error_code="" if finished.error is None else finished.error.code,
        resumes=finished.resumes,
    )


def _us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1_000_000)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
