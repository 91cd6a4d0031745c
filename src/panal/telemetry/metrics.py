"""Metrics of one program in a registry that is handed in.

Children of labels are looked up in plain dictionaries, and there are only so many of each: a name that
is not known falls into 'other'. No label holds a key, a prompt, an address or a person.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry

from panal.core.clock import Clock, SystemClock
from panal.telemetry.sums import VIEW, Family
from panal.telemetry.tallies import Count, Counts, Reading, SecondsHistogram, States, Totals

OTHER = "other"
MODELS_MAX = 200
CAUSES_MAX = 64

NODE_STATES = ("ready", "resting", "faulty", "missing", "away", "cordoned")
"""What a node of the installation can be, as seen from a gateway (gateway/readiness.py)."""

REST_REASONS = (
    "in_use", "paused", "unknown", "battery", "sleep", "hot", "hours", "disk", "limit", "offline", "unused",
    "starting", "draining", OTHER,
)  # fmt: skip
"""Why a node that is heard takes no work, as coarse as it says it itself. Never who, what or when."""

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


class Children:
    """The children of one counter by one label, made once each; beyond ``most`` values: 'other'."""

    def __init__(self, parent: Counts, most: int = CAUSES_MAX) -> None:
        self._parent = parent
        self._most = most
        self._known: dict[str, Count] = {}

    def __getitem__(self, label: str) -> Count:
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
        self._outcomes: dict[str, Count] = {}
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
    ``tasks`` show what is left behind where something is; ``leads`` is 1 in the controller's process.
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
        leads: Callable[[], float] = lambda: 0,
        spans: Callable[[], Mapping[str, float]] | None = None,
        clock: Clock | None = None,
        nodes: Callable[[], Mapping[str, float]] = dict,
        nodes_expected: Callable[[], float] = lambda: 0,
        resting: Callable[[], Mapping[str, float]] = dict,
        kept_bytes: Callable[[], float] = lambda: 0,
    ) -> None:
        now = (clock or SystemClock()).utc_seconds
        outcomes = ("route", "model", "outcome")
        self.requests = Counts("panal_requests", "Requests that ended.", outcomes, now)
        self.tokens = Counts("panal_tokens", "Tokens shown to clients.", ("model", "kind"), now)
        attempts = Counts("panal_attempts", "Attempts that ended, by cause.", ("cause",), now)
        resumes = Counts("panal_resumes", "Answers that went on elsewhere.", ("cause",), now)
        self.attempts, self.resumes = Children(attempts), Children(resumes)
        not_kept = Counts("panal_answers_not_kept", "Answers too long to be continued elsewhere.", (), now)
        self.not_kept = not_kept.labels()
        labels = ("route", "model")
        self.ttft = SecondsHistogram("panal_ttft_seconds", "Time to the first token.", labels, TTFT_S)
        self.itl = SecondsHistogram("panal_itl_seconds", "Time between tokens.", labels, ITL_S)
        self.total = SecondsHistogram("panal_request_seconds", "Whole requests.", labels, TOTAL_S)
        self.queue = SecondsHistogram("panal_queue_seconds", "Wait for a replica.", labels, QUEUE_S)
        self._all: list[Counts | SecondsHistogram | Reading | States | Totals] = [
            self.requests,
            self.tokens,
            attempts,
            resumes,
            not_kept,
            self.ttft,
            self.itl,
            self.total,
            self.queue,
            Reading("panal_requests_in_flight", "Requests between first byte and end.", in_flight),
            Reading("panal_requests_queued", "Requests that wait for a replica.", queued),
            Reading("panal_streams", "Open streams to clients.", streams),
            Reading("panal_connections", "Open connections of clients.", connections),
            Reading("panal_kept_bytes", "Kept of running answers, to go on elsewhere.", kept_bytes),
            Reading("panal_tasks", "Tasks in the event loop.", tasks),
            Reading("panal_processes", "Gateway processes that run.", lambda: 1),
            Reading("panal_nodes_expected", "Nodes that should be there.", nodes_expected, kind=VIEW),
            States("panal_nodes", "Nodes by what is seen of them.", NODE_STATES, nodes),
            States("panal_nodes_resting", "Resting nodes by reason.", REST_REASONS, resting, label="reason"),
            Reading("panal_leader", "Processes that lead the controller.", leads),
        ]
        if spans is not None:
            self._all.append(Totals("panal_trace_spans", "Spans of traces.", "outcome", spans, now()))
        for each in self._all:
            registry.register(each)
        self._models: frozenset[str] = frozenset()
        self._of: dict[tuple[str, str], RequestMetrics] = {}

    def families(self) -> list[Family]:
        """Everything as it is now. Called in the event loop's thread; 200 models take milliseconds."""
        return [each.family() for each in self._all]

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
