"""Measures the phases of a yield, from the owner's input to the memory that is back."""

from panal.core.nodes import NodeState
from panal.policy.owner_state import Owner
from panal.policy.owner_values import (
    BATTERY,
    HOT,
    HOURS,
    IN_USE,
    LIMIT,
    PAUSED,
    SLEEP,
    UNKNOWN,
    EnginePhase,
)
from panal.protocol.messages import YieldReport

MEASURED = (IN_USE, PAUSED, UNKNOWN, BATTERY, SLEEP, HOURS, HOT, LIMIT)
"""Reasons of yields; a drain, a rest and an engine that would not start are none."""


class YieldPhases:
    """Looks at the machine before and after every event; gives one report a yield."""

    def __init__(self) -> None:
        self._report: YieldReport | None = None
        self._seen_s = 0.0
        self._handed_over = False
        self._engine_gone = False

    def step(self, before: Owner, after: Owner, now_s: float) -> YieldReport | None:
        """The report when a yield has just ended, else None. Drains are no yields."""
        if self._report is None:
            began = after.state is NodeState.YIELDING and before.state is not NodeState.YIELDING
            if not began or after.reason not in MEASURED:
                return None
            self._begin(before, after, now_s)
        report = self._report
        assert report is not None
        since_s = max(0.0, now_s - self._seen_s)
        if not self._handed_over and after.attempts == 0:
            self._handed_over, report.handed_over_s = True, since_s
        if not self._engine_gone and after.engine in (EnginePhase.CHECKING, EnginePhase.OFF):
            self._engine_gone, report.engine_gone_s = True, since_s
        if after.state is NodeState.YIELDING:
            return None
        if after.state is NodeState.SUSPENDED:
            report.kept = True
        else:
            report.memory_back_s = since_s
        if not self._handed_over:
            report.handed_over_s = since_s
        self._report = None
        return report

    def _begin(self, before: Owner, after: Owner, now_s: float) -> None:
        touched = after.reason == IN_USE and after.sight is not None and after.sight.input_s <= now_s
        self._seen_s = after.sight.input_s if touched and after.sight is not None else now_s
        self._handed_over = self._engine_gone = False
        self._report = YieldReport(
            no_new_work_s=now_s - self._seen_s,
            handed_over_s=0.0,
            engine_gone_s=0.0,
            memory_back_s=0.0,
            attempts=before.attempts,
        )
