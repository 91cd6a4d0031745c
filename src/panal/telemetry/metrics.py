"""Metrics of one program in a registry that is handed in.

Children of labels are looked up in plain dictionaries, and there are only so many of each: a name that
is not known falls into 'other'. No label holds a key, a prompt, an address or a person.
"""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics import MetricWrapperBase

from panal.telemetry.tallies import SecondsHistogram

OTHER = "other"
MODELS_MAX = 200
CAUSES_MAX = 64

TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 60.0)
ITL_S = (
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.06,
    0.08,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1.0,
    5.0,
)
TOTAL_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
QUEUE_S = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)

C = TypeVar("C", bound=MetricWrapperBase)


class Children(Generic[C]):
    """The children of one metric by one label, made once each; beyond ``most`` values: 'other'."""

    def __init__(self, parent: C, most: int = CAUSES_MAX) -> None:
        self._parent = parent
        self._most = most
        self._known: dict[str, C] = {}

    def __getitem__(self, label: str) -> C:
        child = self._known.get(label)
        if child is None:
            if len(self._known) >= self._most and label != OTHER:
                return self[OTHER]
            child = self._known[label] = self._parent.labels(label)
        return child


class RequestMetrics:
    """What one model on one route counts; got from GatewayMetrics.of and kept while the request lives."""

    __slots__ = (
        "_outcomes",
        "_requests",
        "completion_tokens",
        "itl",
        "model",
        "prompt_tokens",
        "queue",
        "route",
        "total",
        "ttft",
    )

    def __init__(self, owner: "GatewayMetrics", route: str, model: str) -> None:
        self.route = route
        self.model = model
        self._requests = owner.requests
        self._outcomes: dict[str, Counter] = {}
        self.ttft = owner.ttft.child(route, model)
        self.itl = owner.itl.child(route, model)
        self.total = owner.total.child(route, model)
        self.queue = owner.queue.child(route, model)
        self.prompt_tokens = owner.tokens.labels(model, "prompt")
        self.completion_tokens = owner.tokens.labels(model, "completion")

    def ended(self, outcome: str) -> None:
        """Count the request. ``outcome`` is ``ok`` or the stable code of an error."""
        child = self._outcomes.get(outcome)
        if child is None:
            if len(self._outcomes) >= CAUSES_MAX:
                outcome = OTHER
            child = self._outcomes[outcome] = self._requests.labels(self.route, self.model, outcome)
        child.inc()


class GatewayMetrics:
    """Everything that a gateway process counts.

    Gauges are read when they are scraped, from the numbers themselves, so that nothing can drift:
    ``in_flight``, ``queued`` and ``streams`` must return 0 when nothing is left; ``connections`` and
    ``tasks`` show what is left behind where something is.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        in_flight: Callable[[], float],
        queued: Callable[[], float],
        streams: Callable[[], float],
        connections: Callable[[], float] = lambda: 0,
        tasks: Callable[[], float] = lambda: 0,
        kept_bytes: Callable[[], float] = lambda: 0,
    ) -> None:
        self.requests = Counter(
            "panal_requests", "Requests that ended.", ("route", "model", "outcome"), registry=registry
        )
        self.tokens = Counter(
            "panal_tokens", "Tokens shown to clients.", ("model", "kind"), registry=registry
        )
        self.attempts = Children(
            Counter("panal_attempts", "Attempts that ended, by cause.", ("cause",), registry=registry)
        )
        self.resumes = Children(
            Counter("panal_resumes", "Answers that went on elsewhere.", ("cause",), registry=registry)
        )
        self.not_kept = Counter(
            "panal_answers_not_kept", "Answers too long to be continued elsewhere.", registry=registry
        )
        labels = ("route", "model")
        self.ttft = SecondsHistogram("panal_ttft_seconds", "Time to the first token.", labels, TTFT_S)
        self.itl = SecondsHistogram("panal_itl_seconds", "Time between tokens.", labels, ITL_S)
        self.total = SecondsHistogram("panal_request_seconds", "Whole requests.", labels, TOTAL_S)
        self.queue = SecondsHistogram("panal_queue_seconds", "Wait for a replica.", labels, QUEUE_S)
        for histogram in (self.ttft, self.itl, self.total, self.queue):
            registry.register(histogram)
        gauge(registry, "panal_requests_in_flight", "Requests between first byte and end.", in_flight)
        gauge(registry, "panal_requests_queued", "Requests that wait for a replica.", queued)
        gauge(registry, "panal_streams", "Open streams to clients.", streams)
        gauge(registry, "panal_connections", "Open connections of clients.", connections)
        gauge(registry, "panal_kept_bytes", "Kept of running answers, to go on elsewhere.", kept_bytes)
        gauge(registry, "panal_tasks", "Tasks in the event loop.", tasks)
        self._models: frozenset[str] = frozenset()
        self._of: dict[tuple[str, str], RequestMetrics] = {}

    def models_known(self, names: Iterable[str]) -> None:
        """The models that exist: only these become labels, up to MODELS_MAX; none is forgotten."""
        fresh = sorted(set(names) - self._models)
        self._models |= frozenset(fresh[: max(0, MODELS_MAX - len(self._models))])

    def of(self, route: str, model: str) -> RequestMetrics:
        """The counters of this route and model; ``route`` is one of core.requests.Route's values."""
        found = self._of.get((route, model))
        if found is None:
            if model not in self._models:
                model = OTHER
            key = (route, model)
            found = self._of.get(key)
            if found is None:
                found = self._of[key] = RequestMetrics(self, route, model)
        return found


def gauge(registry: CollectorRegistry, name: str, text: str, value: Callable[[], float]) -> Gauge:
    """A gauge that reads ``value`` at each scrape."""
    made = Gauge(name, text, registry=registry)
    made.set_function(value)
    return made
