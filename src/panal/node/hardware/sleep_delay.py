"""A short delay of the machine's sleep, so that running answers move on before the network is gone.

logind's "delay" inhibitor: the machine still sleeps, later by what the hand-over takes and at most by a part
of logind's own limit (five seconds where nobody set another). Nothing is kept awake, and the end of the
delay never depends on panal alone: logind sleeps at its limit whatever is held.
"""

import asyncio
import logging
import os
from math import inf
from typing import Any

from panal.core.clock import Clock
from panal.node.hardware.bus_calls import BusCalls
from panal.node.hardware.logind import MANAGER, MANAGER_PATH, SERVICE
from panal.node.hardware.watcher import Blind

HELD_SHARE_MAX = 0.8
"""Of logind's limit: what goes on longer is cut off by the sleep rather than by us."""

LIMIT_S = 5.0
"""logind's default, where it does not tell its limit."""

LOOK_EACH_S = 10.0
LEAVING_EACH_S = 0.1
WHY = ("sleep", "panal", "running answers are handed over", "delay")


class SleepDelay:
    """``run`` holds the inhibitor while the machine is awake. Without logind nothing is held."""

    def __init__(self, bus: BusCalls, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._descriptor: int | None = None
        self._limit_s = LIMIT_S
        self._leaving_from_s = inf
        self._back_now = False
        self._woken = asyncio.Event()
        self._log = logging.getLogger("panal.node.owner")
        bus.hear(MANAGER, self._heard)

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def machine_is_back(self, back: bool) -> None:
        """Told at each poll: whether no answer runs here and the engine is gone."""
        self._back_now = back
        if back and self._leaving_from_s < inf:
            self._woken.set()

    async def run(self) -> None:
        """Hold and let go until cancelled."""
        try:
            while True:
                self._woken.clear()
                leaving = self._leaving_from_s < inf
                if leaving:
                    self._let_go_when_due()
                else:
                    await self._hold()
                waiting_s = LEAVING_EACH_S if leaving and self.held else LOOK_EACH_S
                try:
                    async with asyncio.timeout(waiting_s):
                        await self._woken.wait()
                except TimeoutError:
                    continue
        finally:
            self._let_go()

    # --- inside

    def _heard(self, member: str, body: list[Any]) -> None:
        if member != "PrepareForSleep" or not body:
            return
        self._leaving_from_s = self._clock.monotonic_seconds() if body[0] else inf
        self._back_now = False  # what was said before counts no more: an attempt may have begun since
        self._woken.set()

    def _let_go_when_due(self) -> None:
        if not self.held:
            return
        passed_s = self._clock.monotonic_seconds() - self._leaving_from_s
        if self._back_now or passed_s >= self._limit_s * HELD_SHARE_MAX:
            words = "handed over" if self._back_now else "not done in time"
            self._let_go()
            self._log.info("the machine may sleep now: %s after %.1f s", words, passed_s)

    async def _hold(self) -> None:
        if self.held and self._bus.connected:
            return
        self._let_go()  # without the bus nobody would tell us of the sleep, and it would only wait for us
        try:
            manager = await self._bus.properties(SERVICE, MANAGER_PATH, MANAGER)
            limit_us = manager.get("InhibitDelayMaxUSec")
            self._limit_s = limit_us / 1e6 if isinstance(limit_us, int) else LIMIT_S
            self._descriptor = await self._bus.ask_descriptor(
                SERVICE, MANAGER_PATH, MANAGER, "Inhibit", "ssss", *WHY
            )
        except Blind as error:
            self._log.debug("sleep is not delayed: %s", error)

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
