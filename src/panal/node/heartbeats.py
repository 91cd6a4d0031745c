"""When heartbeats go out: each half second while serving, else each second, at once on a change."""

import asyncio
from collections.abc import Callable

from panal.core.errors import BusError
from panal.core.nodes import NodeState
from panal.protocol.messages import Heartbeat

SERVING_EACH_S = 0.5
RESTING_EACH_S = 1.0
CHANGES_EACH_S = 0.1
"""Changes that follow each other faster share one heartbeat."""


class Heartbeats:
    """``build`` gives the heartbeat for a sequence number; ``send`` raises BusError when it cannot go."""

    def __init__(self, build: Callable[[int], Heartbeat], send: Callable[[Heartbeat], None]) -> None:
        self._build = build
        self._send = send
        self._changed = asyncio.Event()
        self._sequence = 0
        self.unsent = 0
        """Heartbeats that found no connection."""

    def now(self) -> None:
        """Something changed: do not wait for the next round."""
        self._changed.set()

    async def run(self) -> None:
        """Beat until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            heartbeat = self.beat()
            sent_s = loop.time()
            serving = heartbeat.state == NodeState.SERVING.value
            try:
                async with asyncio.timeout(SERVING_EACH_S if serving else RESTING_EACH_S):
                    await self._changed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(max(0.0, sent_s + CHANGES_EACH_S - loop.time()))

    def beat(self) -> Heartbeat:
        """Send one now."""
        heartbeat = self._build(self._sequence)
        self._sequence += 1
        try:
            self._send(heartbeat)
        except BusError:
            self.unsent += 1
        return heartbeat
