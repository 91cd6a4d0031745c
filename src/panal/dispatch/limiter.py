"""The gateway's side of limits: blocks in memory, one loop that exchanges them with the store.

A caller without limits costs one dictionary look-up. A limited request that finds enough in the blocks of
this process takes it at once; only one that does not waits for a round trip, which all that wait share.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from panal.core.clock import Clock
from panal.core.errors import PanalError, RateLimited, StoreError
from panal.core.ids import ApiKeyId, GatewayId
from panal.core.principals import Principal
from panal.core.requests import InferenceRequest, Route
from panal.dispatch.outcome import Finished
from panal.ledger.settlement import charged
from panal.ledger.values import Outcome
from panal.policy.blocks import (
    KEEP_NEAR_S,
    LEASE_S,
    Block,
    Blocks,
    Refusal,
    Reservation,
    due,
    exchange,
    keep_debts,
    refusal,
    reserve,
    settle,
    take,
)
from panal.policy.limits import Exchange, Limit, Shares
from panal.telemetry.logs import fields

OUTPUT_TOKENS_DEFAULT = 200
"""Reserved for an answer whose request sets no ``max_tokens``."""
ASK_S_MAX = 5.0
"""Longest wait for the store."""
AWAY_S = 1.0
"""While the store is away and nobody waits, it is asked again after this time."""
ASKS_MAX = 256
"""Requests that share one round trip."""
RETRY_AFTER_AWAY_S = 5

log = logging.getLogger("panal.gateway")


class LimitStore(Protocol):
    """Where limits are kept. Every method may raise StoreError."""

    async def limits_revision(self) -> int: ...

    async def every_limit(self) -> Sequence[Limit]: ...

    async def exchange_limits(
        self, gateway_id: GatewayId, exchange: Exchange, now_utc_us: int, lease_us: int
    ) -> Shares: ...


@dataclass(slots=True, eq=False)
class _Waiter:
    """A request that found too little here."""

    blocks: tuple[Block, ...]
    tokens: int
    answer: asyncio.Future[Reservation | Refusal]


class Limiter:
    """Call ``refresh`` before serving and each second; ``run`` beside it; ``close`` at the end."""

    def __init__(self, store: LimitStore, gateway_id: GatewayId, clock: Clock) -> None:
        self._store = store
        self._gateway_id = gateway_id
        self._clock = clock
        self._blocks = Blocks()
        self._revision = -1
        self._of_caller: dict[ApiKeyId, tuple[Block, ...]] | None = None
        """None: nobody is limited. Filled by and by, emptied when limits change."""
        self._active: set[Block] = set()
        """Blocks that may have something to give back or to renew."""
        self._waiting: list[_Waiter] = []
        self._away_until_s = float("-inf")
        self._wake = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    def limits_of(self, principal: Principal) -> tuple[Block, ...]:
        """The limits of this caller: of its key, project and tenant. Empty for most."""
        if self._of_caller is None:
            return ()
        found = self._of_caller.get(principal.key_id)
        if found is None:
            subjects = (principal.key_id, principal.project_id, principal.tenant_id)
            found = self._of_caller[principal.key_id] = self._blocks.of(subjects)
        return found

    async def reserve(self, request: InferenceRequest) -> Reservation | None:
        """Take what the request may use, for ``settle``; None where its caller has no limits.

        Raises RateLimited, after which nothing is taken anywhere; StoreError when a block is needed and
        the store is away.
        """
        blocks = self.limits_of(request.principal)
        if not blocks:
            return None
        tokens = reserved_tokens(request)
        found = reserve(blocks, tokens, self._clock.monotonic_seconds(), self._clock.utc_seconds())
        if not isinstance(found, (Reservation, Refusal)):
            found = await self._ask(blocks, tokens)
        if isinstance(found, Refusal):
            raise _told(found)
        if not self._active:
            self._wake.set()
        self._active.update(blocks)
        return found

    def settle(self, reservation: Reservation, finished: Finished) -> None:
        """True up to what the ledger charges; where that is nothing, the request did not count either."""
        paid = charged(finished.outcome, finished.shown)
        counts = finished.outcome is Outcome.COMPLETE or paid.total_tokens > 0
        self._settle(reservation, paid.total_tokens, counts=counts)

    def _settle(self, reservation: Reservation, tokens: int, *, counts: bool) -> None:
        overdrawn = settle(reservation, tokens, self._clock.monotonic_seconds(), counts=counts)
        if overdrawn or not self._active:
            self._wake.set()
        self._active.update(block for block, _taken, _start in reservation.held)

    def headers_of(self, principal: Principal) -> list[tuple[str, str]]:
        """OpenAI's headers for a limited caller, from the tightest limit of each kind; else nothing."""
        blocks = self.limits_of(principal)
        if not blocks:
            return []
        now_s, utc_s = self._clock.monotonic_seconds(), self._clock.utc_seconds()
        for block in blocks:
            block.turn(now_s, utc_s)
        headers = []
        for what in ("requests", "tokens"):
            found = [
                block
                for block in blocks
                if (block.kind.counts_tokens if what == "tokens" else block.kind.counts_requests)
            ]
            if found:
                tightest = min(found, key=lambda block: block.remaining)
                headers += [
                    (f"x-ratelimit-limit-{what}", str(tightest.amount)),
                    (f"x-ratelimit-remaining-{what}", str(tightest.remaining)),
                    (f"x-ratelimit-reset-{what}", _duration(tightest.reset_s(utc_s))),
                ]
        return headers

    async def refresh(self) -> None:
        """Reads the limits again if they changed. Raises StoreError; those known stay in force."""
        revision = await self._store.limits_revision()
        if revision == self._revision:
            return
        limits = await self._store.every_limit()
        self._blocks.set_limits(limits)
        self._of_caller = {} if limits else None
        self._revision = revision

    async def run(self) -> None:
        """Exchange blocks with the store whenever that is needed, until cancelled."""
        try:
            while True:
                try:
                    async with asyncio.timeout(KEEP_NEAR_S if self._active else None):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.clear()
                await self._round()
        finally:
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                _answer(waiter, StoreError("The gateway is stopping. Try again."))

    async def close(self) -> None:
        """Give back all that is unused. Raises StoreError; then it comes back when windows and leases end."""
        unused = [block for block in self._active if block.free]
        if unused:
            await self._exchange([], unused)

    async def _ask(self, blocks: tuple[Block, ...], tokens: int) -> Reservation | Refusal:
        waiter = _Waiter(blocks, tokens, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._wake.set()
        try:
            async with asyncio.timeout(ASK_S_MAX):
                return await waiter.answer
        except (TimeoutError, asyncio.CancelledError) as broken_off:
            answer = waiter.answer
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                let_in = answer.result()  # in the very moment in which it was broken off
                if isinstance(let_in, Reservation):
                    self._settle(let_in, 0, counts=False)
            if isinstance(broken_off, TimeoutError):
                raise _store_away() from None
            raise

    async def _round(self) -> None:
        now_s, utc_s = self._clock.monotonic_seconds(), self._clock.utc_seconds()
        waiting = [each for each in self._waiting[:ASKS_MAX] if self._still_short(each, now_s, utc_s)]
        del self._waiting[:ASKS_MAX]
        if self._waiting:
            self._wake.set()
        returning = due(self._active, now_s, utc_s) if waiting or now_s >= self._away_until_s else []
        if not waiting and not returning:
            self._active = {block for block in self._active if block.free or block.running}
            return
        try:
            await self._exchange(waiting, returning)
        except StoreError as error:
            if self._away_until_s < 0:
                log.warning(
                    "limits wait for the store: %s", error.message, extra=fields(action="limits_away")
                )
            self._away_until_s = now_s + AWAY_S
            for waiter in waiting:
                _answer(waiter, _store_away())
        else:
            self._away_until_s = float("-inf")

    def _still_short(self, waiter: _Waiter, now_s: float, utc_s: float) -> bool:
        """Whether the store has to be asked for this one; it is answered here if not."""
        if waiter.answer.done():
            return False
        found = reserve(waiter.blocks, waiter.tokens, now_s, utc_s)
        if isinstance(found, (Reservation, Refusal)):
            waiter.answer.set_result(found)
            return False
        return True

    async def _exchange(self, waiting: Sequence[_Waiter], returning: Sequence[Block]) -> None:
        async with self._one_at_a_time:
            await self._exchange_now(waiting, returning)

    async def _exchange_now(self, waiting: Sequence[_Waiter], returning: Sequence[Block]) -> None:
        asked_s, utc_s = self._clock.monotonic_seconds(), self._clock.utc_seconds()
        wanted = [(waiter.blocks, waiter.tokens) for waiter in waiting]
        message, touched = exchange(wanted, returning, asked_s, utc_s)
        try:
            shares = await self._store.exchange_limits(
                self._gateway_id, message, round(utc_s * 1_000_000), round(LEASE_S * 1_000_000)
            )
        except BaseException:
            keep_debts(message, touched)
            raise
        self._active.update(touched.values())
        take(shares, touched, asked_s)
        now_s, utc_s = self._clock.monotonic_seconds(), self._clock.utc_seconds()
        for waiter, accepted in zip(waiting, shares.accepted, strict=True):
            if waiter.answer.done():
                continue  # it left; its part is in the blocks and goes back from there
            found = reserve(waiter.blocks, waiter.tokens, now_s, utc_s)
            if isinstance(found, (Reservation, Refusal)):
                waiter.answer.set_result(found)
            elif accepted:
                self._waiting.append(waiter)  # its window ended, or its part went to one before it
                self._wake.set()
            else:
                waiter.answer.set_result(_tightest(waiter, utc_s))


def reserved_tokens(request: InferenceRequest) -> int:
    """The prompt as estimated and as much as the answer may have."""
    if request.route is Route.EMBEDDINGS:
        return request.prompt_tokens_estimate
    return request.prompt_tokens_estimate + (request.max_tokens or OUTPUT_TOKENS_DEFAULT)


def _store_away() -> StoreError:
    return StoreError("Limits cannot be checked at the moment.", retry_after_s=RETRY_AFTER_AWAY_S)


def _answer(waiter: _Waiter, error: PanalError) -> None:
    if not waiter.answer.done():
        waiter.answer.set_exception(error)


def _tightest(waiter: _Waiter, utc_s: float) -> Refusal:
    short = [block for block in waiter.blocks if block.need(waiter.tokens) > block.remaining]
    return refusal((short or list(waiter.blocks))[0], waiter.tokens, utc_s)


def _told(found: Refusal) -> RateLimited:
    block = found.block
    limit = f"{block.amount} {block.kind.words}"
    if found.never:
        return RateLimited(
            f"The request may use {found.need} tokens, more than the limit of {limit} allows at all. "
            "Send less, or a smaller 'max_tokens'.",
            retry_after_s=found.reset_s,
        )
    return RateLimited(
        f"The limit of {limit} is reached: {found.remaining} left, {found.need} needed. "
        f"Try again in {found.reset_s} s.",
        retry_after_s=found.reset_s,
    )


def _duration(seconds: int) -> str:
    """As OpenAI writes it: ``1h2m3s``, without parts that are 0 on the left."""
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
