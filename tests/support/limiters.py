"""Limiters as gateway processes have them, over any store, with a clock that tests move."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from panal.core.clock import ManualClock
from panal.core.errors import PanalError, RateLimited
from panal.core.ids import GatewayId
from panal.core.requests import InferenceRequest, Usage
from panal.dispatch.limiter import Limiter, LimitStore
from panal.dispatch.outcome import Finished
from panal.ledger.values import Outcome
from panal.policy.blocks import Reservation
from tests.support.path import a_request

LIMIT_S = 20.0


class Process:
    """One gateway's limiter and what its requests hold."""

    def __init__(self, limiter: Limiter, clock: ManualClock) -> None:
        self.limiter = limiter
        self.clock = clock
        self.let_in: list[tuple[InferenceRequest, Reservation | None]] = []
        self.refused: list[PanalError] = []

    async def ask(self, tokens: int = 60, **changes: Any) -> bool:
        """Whether a request of so many tokens was let in."""
        request = a_request(
            self.clock, **({"prompt_tokens_estimate": 10, "max_tokens": tokens - 10} | changes)
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                self.let_in.append((request, await self.limiter.reserve(request)))
        except RateLimited as error:
            self.refused.append(error)
            return False
        return True

    def end(self, used: Usage, outcome: Outcome = Outcome.COMPLETE) -> None:
        """The oldest request that was let in ends."""
        request, reservation = self.let_in.pop(0)
        if reservation is not None:
            self.limiter.settle(reservation, Finished(request, outcome, None, used))


@asynccontextmanager
async def processes(store: LimitStore, count: int, clock: ManualClock) -> AsyncIterator[list[Process]]:
    """Running limiters on one store."""
    made = [Process(Limiter(store, GatewayId(f"gw_{number}"), clock), clock) for number in range(count)]
    for process in made:
        await process.limiter.refresh()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(process.limiter.run()) for process in made]
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()
