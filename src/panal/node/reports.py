"""What a node tells the controller: final counts until they were seen, yields, a wish for a credential."""

import asyncio
import logging
from collections.abc import Callable

from panal.core.clock import Clock
from panal.core.errors import BusError
from panal.core.ids import InstanceId
from panal.node.counts import KeptCounts
from panal.node.settings import AgentSettings
from panal.protocol.messages import Report, YieldReport

REPORT_EACH_S = 1.0
RENEW_AGAIN_S_MAX = 30.0
YIELDS_KEPT_MAX = 32
WAKE_TOLD_EACH_S = 60.0
"""Whether and how it may be woken: a report may be lost, so it is told again."""


class Reports:
    """``send_report`` raises BusError when the message cannot go; what it held is sent again later."""

    def __init__(
        self,
        settings: AgentSettings,
        instance: InstanceId,
        counts: KeptCounts,
        send_report: Callable[[Report], None],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._instance = instance
        self._counts = counts
        self._send_report = send_report
        self._clock = clock
        self._yields: list[YieldReport] = []
        self._credential_s = settings.credential_s
        self._renewed_s = clock.monotonic_seconds()
        self._asked_s = float("-inf")
        self._wake_told_s = float("-inf")
        self._log = logging.getLogger("panal.node.reports")

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await asyncio.sleep(REPORT_EACH_S)
            self.send()

    def renewed(self, credential_s: float) -> None:
        """A fresh credential is in use, good for so long from now."""
        self._credential_s = credential_s
        self._renewed_s = self._clock.monotonic_seconds()

    def add_yield(self, report: YieldReport) -> None:
        """Tell of one yield with the next report; of many the oldest are dropped."""
        self._yields = [*self._yields[1 - YIELDS_KEPT_MAX :], report]

    def carried_out(self, instruction: str) -> None:
        """An instruction was carried out."""
        self._send(Report(node=self._settings.node, instance=self._instance, instruction=instruction))

    def send(self) -> None:
        """Send what there is to tell, if anything."""
        now_s = self._clock.monotonic_seconds()
        counts = self._counts.to_report(now_s)
        renew = self._renew_due(now_s)
        wake = now_s - self._wake_told_s >= WAKE_TOLD_EACH_S
        if not (counts or renew or self._yields or wake):
            return
        report = Report(
            node=self._settings.node,
            instance=self._instance,
            renew=renew,
            counts=counts,
            yields=self._yields,
            wake=list(self._settings.wake_macs) if wake else None,
        )
        if self._send(report):
            self._counts.sent(counts, now_s)
            self._yields = []
            if renew:
                self._asked_s = now_s
            if wake:
                self._wake_told_s = now_s

    def _renew_due(self, now_s: float) -> bool:
        again_s = min(RENEW_AGAIN_S_MAX, self._credential_s / 8)
        old = now_s - self._renewed_s >= self._credential_s / 2
        return old and now_s - self._asked_s >= again_s

    def _send(self, report: Report) -> bool:
        try:
            self._send_report(report)
        except BusError as error:
            self._log.info("a report has to wait: %s", error.message)
            return False
        return True
