"""Whether the gateways that we work for still live: engines must not go on for a dead one.

A gateway says each second that it is there and which attempts it follows (Present). When it falls silent
while the bus itself answers, its attempts are stopped. One that never said so is not judged: an older
version does not say it.
"""

import asyncio
from collections.abc import Awaitable, Callable

from panal.core.clock import Clock
from panal.core.ids import GatewayId
from panal.node.attempts import Attempts
from panal.protocol.messages import Present

SILENT_AFTER_S = 3.0
LOOK_EACH_S = 0.25
ANSWER_S_MAX = 1.0
"""With a second between two words of a gateway, an engine stops 4.3 s after its death at the latest."""


class GatewaysHeard:
    """``bus_answers(timeout_s)``: whether the bus answers; all that it had for us was handled by then."""

    def __init__(
        self, attempts: Attempts, bus_answers: Callable[[float], Awaitable[bool]], clock: Clock
    ) -> None:
        self._attempts = attempts
        self._bus_answers = bus_answers
        self._clock = clock
        self._heard_s: dict[GatewayId, float] = {}

    def heard(self, present: Present) -> None:
        """A gateway spoke to this instance."""
        gateway = GatewayId(present.gateway)
        self._heard_s[gateway] = self._clock.monotonic_seconds()
        self._attempts.reconcile(gateway, present.attempts, partial=present.partial)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EACH_S)
            if self._silent():
                await self._judge()

    def _silent(self) -> list[GatewayId]:
        now_s = self._clock.monotonic_seconds()
        return [gateway for gateway, at_s in self._heard_s.items() if now_s - at_s > SILENT_AFTER_S]

    async def _judge(self) -> None:
        """If the bus is away, or was while we slept, the silence says nothing of a gateway."""
        working = self._attempts.gateways()
        if not working.isdisjoint(self._silent()) and not await self._bus_answers(ANSWER_S_MAX):
            return
        for gateway in self._silent():
            del self._heard_s[gateway]
            self._attempts.abandon(gateway)
