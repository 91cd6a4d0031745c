"""Final counts of attempts, kept until the controller has seen them, so that a lost gateway reconciles."""

from collections import OrderedDict
from collections.abc import Iterable

from panal.protocol.messages import AttemptCounts

KEPT_MAX = 4096
REPORTED_AT_ONCE_MAX = 200
SEND_AGAIN_S = 5.0


class KeptCounts:
    """A bounded store; when it is full the oldest are dropped, and that is counted."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._counts: OrderedDict[str, AttemptCounts] = OrderedDict()
        self._sent_s: dict[str, float] = {}
        self.dropped = 0

    def keep(self, counts: AttemptCounts) -> None:
        self._counts[counts.attempt] = counts
        while len(self._counts) > self._kept_max:
            oldest, _ = self._counts.popitem(last=False)
            self._sent_s.pop(oldest, None)
            self.dropped += 1

    def seen(self, attempts: Iterable[str]) -> None:
        """The controller has these; forget them."""
        for attempt in attempts:
            self._counts.pop(attempt, None)
            self._sent_s.pop(attempt, None)

    def to_report(self, now_s: float) -> list[AttemptCounts]:
        """Those that were not sent within the last SEND_AGAIN_S, as many as fit into one report."""
        due: list[AttemptCounts] = []
        for name, counts in self._counts.items():
            if now_s - self._sent_s.get(name, float("-inf")) >= SEND_AGAIN_S:
                due.append(counts)
                if len(due) == REPORTED_AT_ONCE_MAX:
                    break
        return due

    def sent(self, counts: Iterable[AttemptCounts], now_s: float) -> None:
        """These are on their way; send them again if nobody says that they were seen."""
        for each in counts:
            self._sent_s[each.attempt] = now_s

    def __len__(self) -> int:
        return len(self._counts)
