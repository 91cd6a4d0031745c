"""The owner's side of a node as the agent sees it: what it says, what it is told, what it may order."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from panal.core.nodes import NodeState
from panal.protocol.messages import YieldReport


class NodeWork(Protocol):
    """What the owner's side may order. Every call returns at once; the work goes on behind it."""

    def hand_over(self, grace_s: float) -> None:
        """Tell the gateways of all attempts to go on elsewhere; end the attempts within ``grace_s``."""
        ...

    def start_engine(self) -> None:
        """Make the engine serve, with back-off after failures. ``engine_started`` follows."""
        ...

    def stop_engine(self, *, kill: bool) -> None:
        """End the engine's processes, with ``kill`` this instant. ``engine_stopped`` follows."""
        ...

    def state_changed(self) -> None:
        """State or reason is another one: send a heartbeat now."""
        ...

    def engine_process_ids(self) -> frozenset[int]:
        """The processes whose memory is the engine's."""
        ...

    def limit_slots(self, share: float) -> None:
        """Take only this share of the engine's requests at once; those that run go on."""
        ...

    def yielded(self, report: YieldReport) -> None:
        """One yield is over: tell the controller how long its phases took."""
        ...


class Availability(Protocol):
    """Decides whether the node serves. Everything is called from the event loop and returns at once."""

    @property
    def state(self) -> NodeState:
        """What the heartbeat says, unless the agent knows of a fault."""
        ...

    @property
    def reason(self) -> str:
        """Why work is not taken, coarse and free of personal facts; empty when it is."""
        ...

    def may_serve(self) -> str | None:
        """None when a request may begin this instant, else the reason. Asked before every attempt."""
        ...

    def attach(self, work: NodeWork) -> None:
        """Called once, before ``run``."""
        ...

    async def run(self) -> None:
        """Watch the owner until cancelled; may also return when there is nothing to watch."""
        ...

    def attempt_started(self) -> None: ...

    def attempt_ended(self) -> None: ...

    def engine_started(self) -> None: ...

    def engine_stopped(self) -> None:
        """Its processes are gone: it was told so, crashed, or could not start."""
        ...

    def drain(self, *, on: bool) -> None:
        """Operators want the node empty, or no longer."""
        ...

    def bus_changed(self, *, connected: bool) -> None:
        """The connection to the bus came or went."""
        ...

    def wanted(self) -> None:
        """Somebody asks for a node that rests."""
        ...

    def hazards_per_h(self) -> list[float]:
        """How often the owner may come, an hour: this hour and the next; empty where nobody owns it."""
        ...


HAND_OVER_GRACE_S = 2.0


class AlwaysAvailable:
    """Nobody comes before panal. A drain lets attempts end by themselves for ``drain_s``, then hands over."""

    def __init__(self, drain_s: float = 60.0) -> None:
        self._drain_s = drain_s
        self._work: NodeWork | None = None
        self._engine_on = False
        self._draining = False
        self._attempts = 0
        self._drain_timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> NodeState:
        if self._draining:
            return NodeState.DRAINING
        if not self._engine_on:
            return NodeState.STARTING
        return NodeState.SERVING if self._attempts else NodeState.AVAILABLE

    @property
    def reason(self) -> str:
        return self.may_serve() or ""

    def may_serve(self) -> str | None:
        if self._draining:
            return "drained by its operators"
        return None if self._engine_on else "starting"

    def attach(self, work: NodeWork) -> None:
        self._work = work

    async def run(self) -> None:
        """Start the engine; nobody is to be watched."""
        self._order(lambda work: work.start_engine())
        try:
            await asyncio.Event().wait()
        finally:
            if self._drain_timer is not None:
                self._drain_timer.cancel()

    def attempt_started(self) -> None:
        self._attempts += 1
        if self._attempts == 1:
            self._order(lambda work: work.state_changed())

    def attempt_ended(self) -> None:
        self._attempts -= 1
        if self._attempts == 0:
            self._order(lambda work: work.state_changed())

    def engine_started(self) -> None:
        self._engine_on = True
        self._order(lambda work: work.state_changed())

    def engine_stopped(self) -> None:
        self._engine_on = False
        self._order(lambda work: work.state_changed())
        if not self._draining:
            self._order(lambda work: work.start_engine())

    def drain(self, *, on: bool) -> None:
        if on == self._draining:
            return
        self._draining = on
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        if on:
            self._drain_timer = asyncio.get_running_loop().call_later(self._drain_s, self._hand_over)
        else:
            self._order(lambda work: work.start_engine())
        self._order(lambda work: work.state_changed())

    def bus_changed(self, *, connected: bool) -> None:
        """Nothing depends on it."""

    def wanted(self) -> None:
        """It never rests."""

    def hazards_per_h(self) -> list[float]:
        return []

    def _hand_over(self) -> None:
        self._drain_timer = None
        self._order(lambda work: work.hand_over(HAND_OVER_GRACE_S))

    def _order(self, order: Callable[[NodeWork], None]) -> None:
        if self._work is not None:
            order(self._work)
