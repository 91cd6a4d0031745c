"""Metrics of several processes as one: what is counted is added up, what is measured now is added up over
those that live, and what all of them see is shown once. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

COUNTER, GAUGE, VIEW, HISTOGRAM = "counter", "gauge", "view", "histogram"
"""A view is a gauge of something that all processes see, so that it is not added up: the largest stands."""


NOW = frozenset({GAUGE, VIEW})


class Series(msgspec.Struct, array_like=True, gc=False):
    """Numbers under one combination of label values.

    Counter: ``numbers`` is the count, ``created`` when counting began (UTC seconds). Gauge, view: the value.
    Histogram: the sum, then one count for each bucket, each observation in one bucket only.
    """

    labels: tuple[str, ...]
    numbers: list[float]
    created: float = 0.0


class Family(msgspec.Struct, array_like=True, gc=False):
    """One metric. ``bounds``: upper bounds of a histogram's buckets, without the last, which has none."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]
    series: list[Series]
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """What one process counted. One that does not live counts, but holds nothing now."""

    families: Sequence[Family]
    lives: bool


def added_up(parts: Iterable[Part]) -> list[Family]:
    """One family of each name, in the order in which they first come. Nothing that was given is changed.

    Histograms whose bounds differ are of different programs; of these the first one stands.
    """
    found: dict[str, Family] = {}
    sums: dict[str, dict[tuple[str, ...], Series]] = {}
    for part in parts:
        for family in part.families:
            first = found.setdefault(family.name, family)
            if (family.kind, family.bounds) != (first.kind, first.bounds):
                continue
            of_name = sums.setdefault(family.name, {})
            for series in family.series if part.lives or family.kind not in NOW else ():
                before = of_name.get(series.labels)
                join = _max if family.kind == VIEW else _sum
                of_name[series.labels] = series if before is None else join(before, series)
    return [
        Family(name, of.kind, of.text, of.labels, _whole(of, list(sums[name].values())), of.bounds)
        for name, of in found.items()
    ]


def counted(families: Iterable[Family]) -> list[Family]:
    """What outlives its process."""
    return [family for family in families if family.kind not in NOW]


def _max(first: Series, second: Series) -> Series:
    numbers = [max(one, other) for one, other in zip(first.numbers, second.numbers, strict=True)]
    return Series(first.labels, numbers, first.created)


def _sum(first: Series, second: Series) -> Series:
    numbers = [one + other for one, other in zip(first.numbers, second.numbers, strict=True)]
    return Series(first.labels, numbers, min(first.created, second.created))


def _whole(family: Family, series: list[Series]) -> list[Series]:
    """A gauge without labels is 0 when nobody lives, not away."""
    if family.kind in NOW and not family.labels and not series:
        return [Series((), [0.0])]
    return series


class Collected(Collector):
    """Families as prometheus_client wants to see them."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            yield _metric(family)


def _metric(family: Family) -> Metric:
    if family.kind == COUNTER:
        counter = CounterMetricFamily(family.name, family.text, labels=family.labels)
        for series in family.series:
            counter.add_metric(series.labels, series.numbers[0], created=series.created)
        return counter
    if family.kind in NOW:
        gauge = GaugeMetricFamily(family.name, family.text, labels=family.labels)
        for series in family.series:
            gauge.add_metric(series.labels, series.numbers[0])
        return gauge
    histogram = HistogramMetricFamily(family.name, family.text, labels=family.labels)
    names = [*(repr(bound) for bound in family.bounds), "+Inf"]
    for series in family.series:
        sum_s, *counts = series.numbers
        buckets = list(zip(names, accumulate(counts), strict=True))
        histogram.add_metric(series.labels, buckets=buckets, sum_value=sum_s)
    return histogram
