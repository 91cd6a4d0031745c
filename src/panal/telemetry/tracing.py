"""Traces on or off: what a program holds of them, made from its settings."""

from collections.abc import Mapping

from panal.core.errors import SettingsError
from panal.core.settings import TelemetrySettings
from panal.telemetry.span_export import SpanExport
from panal.telemetry.traces import Value

MISSING = (
    "Traces are switched on ('telemetry.traces_endpoint'), but the library for them is not installed: "
    "pip install 'panal[traces]', or empty that setting."
)


def span_export(settings: TelemetrySettings, service: str, instance: str, version: str) -> SpanExport | None:
    """The way to the collector, not started; None where traces are off, and then no library is loaded.

    Raises SettingsError where they are on and the library is missing.
    """
    if not settings.traces_endpoint:
        return None
    try:
        from panal.telemetry.otlp import Collector
    except ImportError as error:
        raise SettingsError(MISSING) from error
    resource: Mapping[str, Value] = {
        "service.name": service,
        "service.version": version,
        "service.instance.id": instance,
    }
    headers = dict(_header(text) for text in settings.traces_headers)
    return SpanExport(Collector(settings.traces_endpoint, headers, resource).send)


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip() or not (name + value).isprintable() or not text.isascii():
        raise SettingsError("Each of 'telemetry.traces_headers' must be NAME=VALUE.")
    return name.strip(), value.strip()
