"""The path of a request through one gateway process, put together by hand, and what watches it."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry

from panal.bus.nats_bus import NatsGatewayBus
from panal.core.clock import SystemClock
from panal.core.requests import InferenceRequest
from panal.core.settings import Settings
from panal.dispatch.bookings import Bookings
from panal.dispatch.dispatcher import Dispatcher
from panal.dispatch.fleet import Fleet
from panal.dispatch.limiter import Limiter
from panal.dispatch.limits import Limits
from panal.dispatch.names import ServedNames
from panal.dispatch.watch import HedgeBudget, Watch
from panal.gateway.door import Door
from panal.gateway.gateway import Gateway
from panal.gateway.observer import RequestObserver
from panal.gateway.readiness import node_states, nodes_expected, rest_reasons
from panal.gateway.request_spans import RequestSpans
from panal.identity.key_directory import KeyDirectory
from panal.identity.salts import TenantSalts
from panal.policy.residency import node_may_see
from panal.scheduling.continuation import KeptMemory
from panal.scheduling.replicas import ReplicaView
from panal.store.usage_spool import UsageSpool
from panal.telemetry.metrics import GatewayMetrics


def request_path(
    bus: NatsGatewayBus,
    store: Any,
    directory: KeyDirectory,
    spool: UsageSpool,
    settings: Settings,
    clock: SystemClock,
    registry: CollectorRegistry,
    pepper: bytes,
    door: Door,
    leads: Callable[[], bool],
    spans: RequestSpans | None = None,
) -> Gateway:
    """The path and what watches it."""
    limits = limits_of(settings)
    memory = KeptMemory(settings.gateway.kept_bytes_max)
    queued = _Number()
    hedges = HedgeBudget()
    fleet = Fleet(clock)
    bookings = Bookings(
        fleet,
        clock,
        drawn,
        queue_length_max=settings.gateway.queue_length_max,
        queue_wait_s_max=settings.gateway.queue_wait_s_max,
        on_queue=queued.set,
    )
    fleet.on_change = bookings.wake
    metrics_of: list[GatewayMetrics] = []
    observer = RequestObserver(spool, lambda: metrics_of[0], hedges.request_came, spans)
    metrics_of.append(
        GatewayMetrics(
            registry,
            in_flight=lambda: observer.in_flight,
            queued=lambda: queued.value,
            streams=lambda: observer.streams,
            connections=lambda: len(door),
            tasks=lambda: len(asyncio.all_tasks()),
            nodes=lambda: node_states(fleet, clock.monotonic_seconds()),
            nodes_expected=lambda: nodes_expected(fleet),
            resting=lambda: rest_reasons(fleet, clock.monotonic_seconds()),
            kept_bytes=lambda: memory.used_bytes,
            leads=leads,
            spans=spans.counts if spans is not None else None,
            clock=clock,
        )
    )
    salts = TenantSalts(pepper)
    limiter = Limiter(store, bus.gateway, clock)
    dispatcher = Dispatcher(bus, bookings, clock, observer, limits, allowed, salts.of, limiter, spans, memory)
    watch = Watch(dispatcher, fleet, clock, limits, hedges)
    return Gateway(
        bus,
        store,
        directory,
        fleet,
        ServedNames(store, fleet, clock),
        bookings,
        dispatcher,
        watch,
        limiter,
        metrics_of[0],
        clock,
        asyncio.Event(),
    )


def limits_of(settings: Settings) -> Limits:
    """The limits of one request."""
    return Limits(
        first_token_s_max=settings.gateway.first_token_s_max,
        between_tokens_s_max=settings.gateway.between_tokens_s_max,
        recovery_s_max=settings.gateway.recovery_s_max,
        attempts_max=settings.gateway.attempts_max,
        resumes_max=settings.gateway.resumes_max,
        comment_each_s=settings.gateway.comment_each_s,
        hold_bytes_max=settings.gateway.hold_bytes_max,
    )


class _Number:
    """A number that one part sets and another reads."""

    def __init__(self) -> None:
        self.value = 0

    def set(self, value: int) -> None:
        self.value = value


def drawn(count: int) -> int:
    """A number from 0 to ``count`` - 1; a tenth of randrange's time, for four draws a request."""
    return int(random.random() * count)  # noqa: S311 - no secret hangs on it


def allowed(request: InferenceRequest, replica: ReplicaView) -> bool:
    return node_may_see(
        request.data_class,
        request.residency,
        node_data_class=replica.data_class,
        node_country=replica.country,
    )
