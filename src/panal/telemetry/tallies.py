"""Counters and a histogram of seconds that cost little: an addition, and one bisection an observation.

prometheus-client's own take a lock, and its histogram walks its buckets (docs/adr/0008-metrics.md has the
numbers). All counting must be done in one thread; a reader in another may see the last one half counted.
"""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from panal.telemetry.sums import COUNTER, GAUGE, HISTOGRAM, VIEW, Collected, Family, Series

CHILDREN_MAX = 2000
COUNTS_MAX = 50_000


class Count:
    """One counter."""

    __slots__ = ("created_utc_s", "value")

    def __init__(self, created_utc_s: float) -> None:
        self.value = 0.0
        self.created_utc_s = created_utc_s

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


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

    def numbers(self) -> list[float]:
        """As a histogram's Series has them."""
        return [self.sum_s, *self._counts]


class _Shown(Collector):
    """What a registry asks for."""

    @abstractmethod
    def family(self) -> Family:
        """Everything counted so far; cheap enough to be asked for each second."""

    def describe(self) -> Iterator[Metric]:
        empty = self.family()
        empty.series = []
        yield from Collected([empty]).collect()

    def collect(self) -> Iterator[Metric]:
        yield from Collected([self.family()]).collect()


class Counts(_Shown):
    """The children of one counter; register it in a CollectorRegistry."""

    def __init__(self, name: str, text: str, labels: Sequence[str], utc_seconds: Callable[[], float]) -> None:
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._utc_seconds = utc_seconds
        self._children: dict[tuple[str, ...], Count] = {}

    def labels(self, *values: str) -> Count:
        """The child of these label values. Raises ValueError beyond COUNTS_MAX: labels must be bounded."""
        found = self._children.get(values)
        if found is None:
            if len(self._children) >= COUNTS_MAX or len(values) != len(self._labels):
                raise ValueError(f"too many children of {self._name}, or wrong labels")
            found = self._children[values] = Count(self._utc_seconds())
        return found

    def family(self) -> Family:
        series = [
            Series(values, [count.value], count.created_utc_s) for values, count in self._children.items()
        ]
        return Family(self._name, COUNTER, self._text, self._labels, series)


class SecondsHistogram(_Shown):
    """The children of one histogram; register it in a CollectorRegistry."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        if list(bounds) != sorted(set(bounds)):
            raise ValueError("bounds must rise")
        self._name = name
        self._text = text
        self._labels = tuple(labels)
        self._bounds = tuple(float(bound) for bound in bounds)
        self._children: dict[tuple[str, ...], SecondsTally] = {}

    def child(self, *values: str) -> SecondsTally:
        """The child of these label values. Raises ValueError beyond CHILDREN_MAX: labels must be bounded."""
        found = self._children.get(values)
        if found is None:
            if len(self._children) >= CHILDREN_MAX or len(values) != len(self._labels):
                raise ValueError(f"too many children of {self._name}, or wrong labels")
            found = self._children[values] = SecondsTally(self._bounds)
        return found

    def family(self) -> Family:
        series = [Series(values, tally.numbers()) for values, tally in self._children.items()]
        return Family(self._name, HISTOGRAM, self._text, self._labels, series, self._bounds)


class Reading(_Shown):
    """A gauge without labels that reads ``value`` whenever it is asked. ``kind``: GAUGE or VIEW."""

    def __init__(self, name: str, text: str, value: Callable[[], float], *, kind: str = GAUGE) -> None:
        self._name = name
        self._text = text
        self._value = value
        self._kind = kind

    def family(self) -> Family:
        return Family(self._name, self._kind, self._text, (), [Series((), [float(self._value())])])


class Totals(_Shown):
    """A counter with one label whose counts are kept elsewhere and read when it is asked."""

    def __init__(
        self,
        name: str,
        text: str,
        label: str,
        counts: Callable[[], Mapping[str, float]],
        created_utc_s: float,
    ) -> None:
        self._name = name
        self._text = text
        self._labels = (label,)
        self._counts = counts
        self._created_utc_s = created_utc_s

    def family(self) -> Family:
        series = [
            Series((value,), [float(count)], self._created_utc_s) for value, count in self._counts().items()
        ]
        return Family(self._name, COUNTER, self._text, self._labels, series)


class States(_Shown):
    """A view by state that is counted when it is asked; every state is always there, also at 0.

    ``count()`` gives numbers by state; states that are not in ``states`` are left out.
    """

    def __init__(
        self,
        name: str,
        text: str,
        states: Sequence[str],
        count: Callable[[], Mapping[str, float]],
        *,
        label: str = "state",
    ) -> None:
        self._name = name
        self._text = text
        self._labels = (label,)
        self._states = tuple(states)
        self._count = count

    def family(self) -> Family:
        counted = self._count()
        series = [Series((state,), [float(counted.get(state, 0.0))]) for state in self._states]
        return Family(self._name, VIEW, self._text, self._labels, series)
