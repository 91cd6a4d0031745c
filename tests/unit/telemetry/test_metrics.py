"""Metrics: bounded labels, gauges that come back to 0, numbers that Prometheus reads."""

import re

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from panal.telemetry.metrics import CAUSES_MAX, MODELS_MAX, Children, GatewayMetrics
from panal.telemetry.tallies import Counts, SecondsHistogram


class Numbers:
    in_flight = 0.0


def made() -> tuple[CollectorRegistry, GatewayMetrics, Numbers]:
    registry, numbers = CollectorRegistry(), Numbers()
    metrics = GatewayMetrics(
        registry, in_flight=lambda: numbers.in_flight, queued=lambda: 0.0, streams=lambda: 0.0
    )
    return registry, metrics, numbers


def series(registry: CollectorRegistry) -> int:
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return sum(len(family.samples) for family in families)


def test_a_thousand_invented_models_are_one_series_more() -> None:
    registry, metrics, _ = made()
    metrics.models_known(["smol"])
    metrics.of("chat", "smol").ended("ok")
    metrics.of("chat", "nope").ended("model_not_found")
    before = series(registry)
    for number in range(2000):
        metrics.of("chat", f"typo-{number}").ended("model_not_found")
    assert series(registry) == before
    assert registry.get_sample_value(
        "panal_requests_total", {"route": "chat", "model": "other", "outcome": "model_not_found"}
    ) == pytest.approx(2001)
    assert len(metrics._of) <= 2


def test_models_that_exist_are_bounded_too() -> None:
    registry, metrics, _ = made()
    for number in range(3 * MODELS_MAX):
        metrics.models_known([f"m{number}"])
        metrics.of("chat", f"m{number}").ended("ok")
    assert len(metrics._of) == MODELS_MAX + 1
    assert registry.get_sample_value(
        "panal_requests_total", {"route": "chat", "model": "other", "outcome": "ok"}
    ) == pytest.approx(2 * MODELS_MAX)


def test_a_model_that_becomes_known_later_gets_its_own_label() -> None:
    registry, metrics, _ = made()
    metrics.of("chat", "smol").ended("model_not_found")
    metrics.models_known(["smol"])
    metrics.of("chat", "smol").ended("ok")
    assert registry.get_sample_value(
        "panal_requests_total", {"route": "chat", "model": "smol", "outcome": "ok"}
    )


def test_causes_and_outcomes_are_bounded() -> None:
    registry, metrics, _ = made()
    for number in range(500):
        metrics.attempts[f"cause {number}"].inc()
        metrics.of("chat", "x").ended(f"outcome {number}")
    assert registry.get_sample_value("panal_attempts_total", {"cause": "other"}) == 500 - CAUSES_MAX
    assert series(registry) < 3 * 2 * (CAUSES_MAX + 2) + 100


def test_a_gauge_that_becomes_0_shows_0() -> None:
    registry, _, numbers = made()
    numbers.in_flight = 3
    assert registry.get_sample_value("panal_requests_in_flight") == 3
    numbers.in_flight = 0
    assert registry.get_sample_value("panal_requests_in_flight") == 0
    assert b"panal_requests_in_flight 0.0" in generate_latest(registry)


def test_our_histogram_shows_what_the_librarys_shows() -> None:
    bounds = (0.001, 0.01, 0.1, 1.0)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = SecondsHistogram("x_seconds", "Text.", ("model",), bounds)
    ours.register(mine)
    reference = Histogram("x_seconds", "Text.", ("model",), buckets=bounds, registry=theirs)
    for value in (0.0, 0.0005, 0.001, 0.02, 0.1, 0.5, 1.0, 7.0):
        mine.child("m").observe(value)
        reference.labels("m").observe(value)
    mine.child("m").observe_several(0.05, 3)
    for _ in range(3):
        reference.labels("m").observe(0.05)

    def read(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(generate_latest(registry).decode())
        return {
            (sample.name, sample.labels.get("le", "")): pytest.approx(sample.value)
            for family in families
            for sample in family.samples
            if not sample.name.endswith("_created")
        }

    assert read(ours) == read(theirs)
    assert mine.child("m").count == 11


def test_our_counter_shows_what_the_librarys_shows() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = Counts("x", "Text.", ("model", "kind"), lambda: 12.5)
    ours.register(mine)
    reference = Counter("x", "Text.", ("model", "kind"), registry=theirs)
    for amount in (1, 2.5, 40):
        mine.labels('a"\\\n', "é").inc(amount)
        reference.labels('a"\\\n', "é").inc(amount)
    mine.labels("b", "c").inc()
    reference.labels("b", "c").inc()
    created = re.compile(rb"(_created\{.*\}) \S+")
    assert b"1.25e+01" in generate_latest(ours) or b" 12.5\n" in generate_latest(ours)
    assert created.sub(rb"\1", generate_latest(ours)) == created.sub(rb"\1", generate_latest(theirs))
    with pytest.raises(ValueError, match="wrong labels"):
        mine.labels("only one")


def test_labels_of_a_histogram_cannot_grow_without_end() -> None:
    histogram = SecondsHistogram("x_seconds", "Text.", ("model",), (1.0,))
    with pytest.raises(ValueError, match="too many"):
        for number in range(10_000):
            histogram.child(str(number))
    with pytest.raises(ValueError, match="rise"):
        SecondsHistogram("y_seconds", "Text.", (), (2.0, 1.0))


def test_two_programs_in_one_process_do_not_collide() -> None:
    made()
    made()


def test_values_beyond_the_bound_share_one_child() -> None:
    children = Children(Counts("c", "c", ("a",), lambda: 0.0), most=1)
    assert children["x"] is children["x"]
    assert children["y"] is children["z"]
