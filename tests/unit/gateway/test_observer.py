"""What a finished request counts as."""

from typing import Any

from prometheus_client import CollectorRegistry

from panal.core.clock import ManualClock
from panal.core.ids import NodeId
from panal.core.requests import Usage
from panal.dispatch.outcome import WARM_UP, AttemptLog, Finished
from panal.gateway.observer import RequestObserver
from panal.ledger.values import AttemptOutcome, Outcome, Settlement
from panal.telemetry.metrics import GatewayMetrics
from tests.support.path import a_request


class Kept:
    """A spool that never fills."""

    full = False

    def __init__(self) -> None:
        self.settlements: list[Settlement] = []

    def append(self, settlement: Settlement) -> None:
        self.settlements.append(settlement)


def _none() -> float:
    return 0.0


def log(number: int, outcome: AttemptOutcome, cause: str, **more: Any) -> AttemptLog:
    return AttemptLog(
        number, NodeId(f"node_{number}"), f"desk-{number}", outcome=outcome, cause=cause, **more
    )


def counted(*attempts: AttemptLog) -> tuple[dict[tuple[str, str], float], Settlement]:
    """The attempts and resumes that were counted, by what and cause, and the settlement."""
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, in_flight=_none, queued=_none, streams=_none)
    spool = Kept()
    observer = RequestObserver(spool, lambda: metrics, lambda: None)
    request = a_request(ManualClock())
    observer.started(request)
    observer.ended(
        Finished(
            request=request, outcome=Outcome.COMPLETE, error=None, shown=Usage(5, 6), attempts=list(attempts)
        )
    )
    found = {
        (sample.name, sample.labels["cause"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name in ("panal_attempts_total", "panal_resumes_total") and sample.value
    }
    return found, spool.settlements[0]


def test_warm_ups_are_counted_as_such_and_never_as_failures() -> None:
    found, settlement = counted(
        log(1, AttemptOutcome.HANDED_OVER, "node_leaving", tokens=3),
        log(2, AttemptOutcome.LOST, "node_lost", tokens=1, warm_up=True, useful=False),
        log(3, AttemptOutcome.CANCELLED, WARM_UP, tokens=1, warm_up=True, useful=False),
        log(4, AttemptOutcome.COMPLETE, "", tokens=3, goes_on_after="node_leaving"),
    )
    assert found == {
        ("panal_attempts_total", "node_leaving"): 1,
        ("panal_attempts_total", "warm_up"): 2,
        ("panal_attempts_total", "ok"): 1,
        ("panal_resumes_total", "node_leaving"): 1,
    }
    assert settlement.usage.resumes == 1
    assert [each.useful_tokens for each in settlement.contributions] == [3, 0, 0, 3]


def test_a_resume_that_a_node_refused_is_counted_once_by_the_cause_of_the_break() -> None:
    found, settlement = counted(
        log(1, AttemptOutcome.LOST, "node_lost", tokens=3),
        log(2, AttemptOutcome.REFUSED, "node_refused", goes_on_after="node_lost"),
        log(3, AttemptOutcome.COMPLETE, "", tokens=3, goes_on_after="node_lost"),
    )
    assert found[("panal_resumes_total", "node_lost")] == 1
    assert found[("panal_attempts_total", "node_refused")] == 1
    assert settlement.usage.resumes == 1
