"""A gateway's traces: the way to the collector where one is set."""

import asyncio
from contextlib import AsyncExitStack

from panal import __version__
from panal.core.clock import Clock
from panal.core.settings import TelemetrySettings
from panal.gateway.request_spans import RequestSpans
from panal.telemetry.tracing import span_export


def request_spans(
    settings: TelemetrySettings,
    gateway: str,
    clock: Clock,
    stack: AsyncExitStack,
) -> RequestSpans | None:
    """None where traces are off. What is started here is closed by ``stack``. Raises SettingsError."""
    export = span_export(settings, settings.gateway_service, gateway, __version__)
    if export is None:
        return None
    export.start()
    stack.push_async_callback(asyncio.to_thread, export.close)
    return RequestSpans(
        export.put, clock, settings.traces_ratio, lambda: {"sent": export.sent, "lost": export.lost}
    )
