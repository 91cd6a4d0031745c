"""A histogram of seconds that costs one bisection an observation, for what happens once a token.

prometheus-client's own takes a lock and walks its buckets (docs/adr/0008-metrics.md has the numbers).
All observations must come from one thread; a scrape from another may see the last one half counted.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

CHILDREN_MAX = 2000


class SecondsTally:
    """The counts of one child."""

    __slots__ = ("_bounds", "_counts", "sum_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration; one exactly at a bound belongs below it."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum_s += seconds

    def observe_several(self, seconds: float, times: int) -> None:
        """Count ``times`` durations of ``seconds`` each, such as the tokens of one frame."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self.sum_s += seconds * times

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus wants them."""
        total = 0
        out: list[tuple[str, float]] = []
        for bound, count in zip([*(repr(float(b)) for b in self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            out.append((bound, float(total)))
        return out


class SecondsHistogram(Collector):
    """The children of one histogram; register it in a CollectorRegistry."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        if list(bounds) != sorted(set(bounds)):
            raise ValueError("bounds must rise")
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._bounds = tuple(bounds)
        self._children: dict[tuple[str, ...], SecondsTally] = {}

    def child(self, *values: str) -> SecondsTally:
        """The child of these label values. Raises ValueError beyond CHILDREN_MAX: labels must be bounded."""
        found = self._children.get(values)
        if found is None:
            if len(self._children) >= CHILDREN_MAX or len(values) != len(self._labels):
                raise ValueError(f"too many children of {self._name}, or wrong labels")
            found = self._children[values] = SecondsTally(self._bounds)
        return found

    def describe(self) -> Iterator[HistogramMetricFamily]:
        yield HistogramMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, tally in list(self._children.items()):
            family.add_metric(values, buckets=tally.buckets(), sum_value=tally.sum_s)
        yield family
