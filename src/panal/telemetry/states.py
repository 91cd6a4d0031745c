"""A gauge by state that is counted when it is scraped; every state is always there, also at 0."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class StatesGauge(Collector):
    """``count()`` gives numbers by state; states that are not in ``states`` are left out."""

    def __init__(
        self, name: str, text: str, states: Sequence[str], count: Callable[[], Mapping[str, float]]
    ) -> None:
        self._name = name
        self._text = text
        self._labels = ("state",)
        self._states = tuple(states)
        self._count = count

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        counted = self._count()
        for state in self._states:
            family.add_metric([state], counted.get(state, 0.0))
        yield family
