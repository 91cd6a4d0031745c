"""docs/metrics.md lists every metric with its type and labels, and none that is not there."""

from prometheus_client import CollectorRegistry

from panal.telemetry.metrics import GatewayMetrics
from tests.architecture.pages import code, codes, page, part, rows


def registered() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name as it is scraped -> (type, labels)."""
    registry = CollectorRegistry()
    GatewayMetrics(registry, in_flight=lambda: 0, queued=lambda: 0, streams=lambda: 0)
    found = {}
    for collector in list(registry._collector_to_names):
        labels = tuple(getattr(collector, "_labelnames", None) or getattr(collector, "_labels", ()))
        for family in collector.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            found[name] = (family.type, labels)
    return found


def documented(heading: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {
        code(cells[0]): (cells[1], tuple(codes(cells[2])))
        for cells in rows(part(page("docs/metrics.md"), heading))
        if cells[0].startswith("`")
    }


def test_every_metric_is_documented_and_no_other() -> None:
    assert documented("Of a gateway") == registered()


def test_the_metric_of_traces_is_documented_apart() -> None:
    registry = CollectorRegistry()
    zero = dict.fromkeys(("in_flight", "queued", "streams"), lambda: 0)
    GatewayMetrics(registry, **zero, spans=lambda: {"sent": 3, "lost": 4})
    assert documented("With traces on") == {"panal_trace_spans_total": ("counter", ("outcome",))}
    assert registry.get_sample_value("panal_trace_spans_total", {"outcome": "lost"}) == 4.0


def test_every_metric_says_what_it_is() -> None:
    for cells in rows(page("docs/metrics.md")):
        if cells[0].startswith("`"):
            assert cells[-1].endswith("."), cells
