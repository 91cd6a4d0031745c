"""A gateway's traces: the way to the collector where one is set, and its metric."""

import asyncio
from contextlib import AsyncExitStack

from prometheus_client import CollectorRegistry

from panal import __version__
from panal.core.clock import Clock
from panal.core.settings import TelemetrySettings
from panal.gateway.request_spans import RequestSpans
from panal.telemetry.metrics import count_spans
from panal.telemetry.tracing import span_export


def request_spans(
    settings: TelemetrySettings,
    gateway: str,
    clock: Clock,
    registry: CollectorRegistry,
    stack: AsyncExitStack,
) -> RequestSpans | None:
    """None where traces are off. What is started here is closed by ``stack``. Raises SettingsError."""
    export = span_export(settings, settings.gateway_service, gateway, __version__)
    if export is None:
        return None
    count_spans(registry, sent=lambda: export.sent, lost=lambda: export.lost)
    export.start()
    stack.push_async_callback(asyncio.to_thread, export.close)
    return RequestSpans(export.put, clock, settings.traces_ratio)
