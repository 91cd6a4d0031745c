"""Keeps the engine as it is wanted: on or off; starts it again after a crash, ever later.

After some failures in a row the node says that it is faulty, and the tries become rare; they never end,
so that what was wrong may be put right without anybody's hand on this machine (P19).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from panal.core.errors import EngineFailed, SettingsError
from panal.node.engines.engine import Engine, LoadPostponed

FAILURES_MAX = 6
BACK_OFF_S_FIRST = 0.5
BACK_OFF_S_MAX = 30.0
RARE_S = 300.0
"""Between two tries of an engine that failed FAILURES_MAX times: a crash loop costs next to nothing (P27)."""

STEADY_S = 60.0
"""A run as long as this wipes out the memory of earlier failures."""
STOP_GRACE_S = 2.0
PROBE_EACH_S = 0.5
POSTPONED_S = 10.0
"""A load that has to wait for something outside of the engine is tried again so often."""


@dataclass(frozen=True, slots=True)
class KeeperEvents:
    """Whom the keeper tells. ``prepare`` readies a fresh engine and may raise EngineFailed.

    ``stopped`` gets the reason, empty when the engine was told to stop.
    """

    prepare: Callable[[], Awaitable[None]]
    started: Callable[[], None]
    stopped: Callable[[str], None]
    changed: Callable[[], None]


class EngineKeeper:
    """``problem`` says what fails again and again; ``healthy`` is the newest probe's answer.

    ``postponed`` says why a load has to wait; it is no failure, and is tried again by itself.
    """

    def __init__(
        self,
        engine: Engine,
        events: KeeperEvents,
        *,
        back_off_s_first: float = BACK_OFF_S_FIRST,
        rare_s: float = RARE_S,
    ) -> None:
        self._engine = engine
        self._events = events
        self._back_off_s_first = back_off_s_first
        self._rare_s = rare_s
        self._wanted = False
        self._wake = asyncio.Event()
        self._failures = 0
        self._alive = False
        self._on_since_s = float("inf")
        self._restarting = False
        self._again = asyncio.Event()
        self._log = logging.getLogger("panal.node.engine")
        self.on = False
        self.healthy = False
        self.problem = ""
        self.postponed: LoadPostponed | None = None

    def want_on(self) -> None:
        """Start the engine; after a failure when its time has come."""
        self._want(True)

    def want_off(self) -> None:
        """Stop it, and forget earlier failures. ``stopped`` follows even if it does not run."""
        self._failures = 0
        self.problem = ""
        self._want(False)
        if not self._alive:
            asyncio.get_running_loop().call_soon(self._events.stopped, "")

    def kill(self) -> None:
        """The same, this instant."""
        self.want_off()
        self._engine.kill()

    def restart(self) -> None:
        """End a running engine and start it afresh; this counts as no failure. ``stopped`` follows."""
        if self._alive and self.postponed is None:
            self._restarting = True
            self._engine.kill()

    def look_again(self) -> None:
        """What a postponed load waits for may have come."""
        self._again.set()

    def _want(self, on: bool) -> None:
        if self._wanted != on:
            self._wanted = on
            self._wake.set()

    async def run(self) -> None:
        """Work until cancelled; then the engine is stopped."""
        try:
            while True:
                if not self._wanted:
                    await self._woken()
                    continue
                reason = await self._one_life()
                if reason:
                    await self._after_failure(reason)
        finally:
            await self._engine.stop(STOP_GRACE_S)
            self.on = self.healthy = False

    async def _woken(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    async def _one_life(self) -> str:
        """From the start to the end of the engine. Returns why it failed, empty when it was told to stop."""
        loop = asyncio.get_running_loop()
        self._alive = True
        self._on_since_s = float("inf")
        life = loop.create_task(self._live(), name="engine life")
        try:
            while not life.done() and self._wanted:
                waked = loop.create_task(self._woken(), name="engine wanted")
                try:
                    await asyncio.wait({life, waked}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waked.cancel()
                    await asyncio.wait({waked})
            reason = life.result() if life.done() else ""
        finally:
            life.cancel()
            await asyncio.wait({life})
            await self._engine.stop(STOP_GRACE_S)
            self.on = self.healthy = False
        self._alive = False
        if loop.time() - self._on_since_s > STEADY_S:
            self._failures = 0
        self._events.stopped(reason)
        return reason

    async def _live(self) -> str:
        self._restarting = False
        try:
            await self._started()
            self.healthy = await self._engine.healthy()
            await self._events.prepare()
        except (EngineFailed, SettingsError) as error:
            return "" if self._restarting else error.message
        self.on = True
        self._on_since_s = asyncio.get_running_loop().time()
        self.problem = ""
        self._events.started()
        probe = asyncio.get_running_loop().create_task(self._probe(), name="engine probe")
        try:
            reason = await self._engine.ended() or "the engine ended"
            return "" if self._restarting else reason
        finally:
            probe.cancel()
            await asyncio.wait({probe})

    async def _started(self) -> None:
        """Start the engine, waiting for as long as its load is postponed. Raises as Engine.start does."""
        try:
            while True:
                self._again.clear()
                try:
                    await self._engine.start()
                    return
                except LoadPostponed as error:
                    if self.postponed is None or self.postponed.message != error.message:
                        self._log.warning("the engine is not loaded: %s", error.message)
                    self.postponed = error
                    self._events.changed()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POSTPONED_S):
                        await self._again.wait()
        finally:
            self.postponed = None

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE_EACH_S)
            healthy = await self._engine.healthy()
            if healthy != self.healthy:
                self.healthy = healthy
                self._log.warning("the engine answers its health probe: %s", healthy)
                self._events.changed()

    async def _after_failure(self, reason: str) -> None:
        """Wait before the next start."""
        self._failures += 1
        pause_s = self._rare_s
        if self._failures < FAILURES_MAX:
            pause_s = min(self._back_off_s_first * 2 ** (self._failures - 1), BACK_OFF_S_MAX)
        else:
            self.problem = f"the engine failed {self._failures} times: {reason}"
            self._events.changed()
        self._log.warning(
            "the engine failed (%d times), the next try is in %g s: %s", self._failures, pause_s, reason
        )
        try:
            async with asyncio.timeout(pause_s):
                while self._wanted and self._failures:  # 'off' forgets them
                    await self._woken()
        except TimeoutError:
            return
