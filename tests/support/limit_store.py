"""A store of limits in memory, with the store's own arithmetic; it can be away, slow, or lose a process."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from panal.core.errors import StoreError
from panal.policy.limits import AMOUNT_MAX, Account, Exchange, Limit, Shares, share_out


class MemoryLimits:
    """Implements dispatch.limiter.LimitStore."""

    def __init__(self, *limits: Limit) -> None:
        self.limits = {limit.name: limit for limit in limits}
        self.revision = 1
        self.used: defaultdict[Account, int] = defaultdict(int)
        self.held: dict[tuple[str, str], tuple[int, int]] = {}
        self.exchanges = 0
        self.away = False
        self.held_up: asyncio.Event | None = None

    def set(self, *limits: Limit) -> None:
        self.limits = {limit.name: limit for limit in limits}
        self.revision += 1

    async def limits_revision(self) -> int:
        return self.revision

    async def every_limit(self) -> Sequence[Limit]:
        return list(self.limits.values())

    async def exchange_limits(
        self, gateway_id: str, exchange: Exchange, now_utc_us: int, lease_us: int
    ) -> Shares:
        self.exchanges += 1
        if self.held_up is not None:
            await self.held_up.wait()
        if self.away:
            raise StoreError("away")
        return self.exchange(gateway_id, exchange, now_utc_us, lease_us)

    def exchange(self, gateway_id: str, exchange: Exchange, now_utc_us: int, lease_us: int) -> Shares:
        left = {}
        for account in exchange.accounts():
            limit = self.limits.get(account.limit)
            if limit is None:
                left[account] = AMOUNT_MAX
            elif account in exchange.holding:
                others = self.held_by_others(account.limit, gateway_id, now_utc_us)
                left[account] = limit.amount - others - exchange.holding[account]
            else:
                left[account] = limit.amount - self.used[account] + exchange.giving.get(account, 0)
        shares = share_out(left, exchange.asks, exchange.wishes)
        for account in exchange.accounts():
            if account in exchange.holding:
                held = exchange.holding[account] + shares.granted[account]
                self.held[account.limit, gateway_id] = (held, now_utc_us + lease_us)
            else:
                self.used[account] += shares.granted[account] - exchange.giving.get(account, 0)
        return shares

    def held_by_others(self, name: str, gateway_id: str, now_utc_us: int) -> int:
        return sum(
            held
            for (limit, gateway), (held, expires_utc_us) in self.held.items()
            if limit == name and gateway != gateway_id and expires_utc_us > now_utc_us
        )
