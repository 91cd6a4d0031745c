"""Metrics of several processes as one: what is counted is added up, what is measured now is added up over
those that live. Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

GAUGE = "gauge"
_SINCE = "_created"
"""Samples with this ending say when counting began: of several the earliest counts."""


class Sample(msgspec.Struct, array_like=True, frozen=True):
    """``labels``: name and value, in the order of the metric's labels."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Family(msgspec.Struct, array_like=True, frozen=True):
    """One metric with all its samples. ``kind``: counter, histogram or gauge."""

    name: str
    kind: str
    text: str
    samples: list[Sample]


@dataclass(frozen=True, slots=True)
class Part:
    """What one process counted. One that does not live counts, but holds nothing now."""

    families: Sequence[Family]
    lives: bool


def families_of(registry: Collector) -> list[Family]:
    """Everything that a registry holds at this moment."""
    return [
        Family(
            metric.name,
            metric.type,
            metric.documentation,
            [
                Sample(sample.name, tuple(sample.labels.items()), float(sample.value))
                for sample in metric.samples
            ],
        )
        for metric in registry.collect()
    ]


def added_up(parts: Iterable[Part]) -> list[Family]:
    """One family of each name, in the order in which they first come."""
    found: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for part in parts:
        for family in part.families:
            found.setdefault(family.name, family)
            sums = values.setdefault(family.name, {})
            if family.kind == GAUGE and not part.lives:
                continue
            for sample in family.samples:
                key = (sample.name, sample.labels)
                before = sums.get(key)
                if before is None:
                    sums[key] = sample.value
                elif sample.name.endswith(_SINCE):
                    sums[key] = min(before, sample.value)
                else:
                    sums[key] = before + sample.value
    return [
        Family(
            name,
            family.kind,
            family.text,
            [Sample(sample, labels, value) for (sample, labels), value in values[name].items()],
        )
        for name, family in found.items()
    ]


def counted(families: Iterable[Family]) -> list[Family]:
    """What outlives its process."""
    return [family for family in families if family.kind != GAUGE]


class Collected(Collector):
    """Families as prometheus_client wants to see them."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.text, family.kind)
            for sample in family.samples:
                metric.add_sample(sample.name, dict(sample.labels), sample.value)
            yield metric
