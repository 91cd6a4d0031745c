"""Limits, and how much of them gateways hold. Exact under parallel gateways: a row lock for each limit.

``limit_windows.used`` is what is used or in a gateway's block; what a killed gateway held of a window
counts as used until that window ends. ``limit_leases`` are places of requests that run at once; they come
back when they are not renewed.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from panal.core.ids import GatewayId, TenantId
from panal.policy.limits import AMOUNT_MAX, Account, Exchange, Limit, LimitKind, Shares, share_out
from panal.store import tables
from panal.store.revisions import Revisions
from panal.store.statements import insert

_LIMITS = tables.limits
_WINDOWS = tables.limit_windows
_LEASES = tables.limit_leases


class Limits:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def all(self) -> Sequence[Limit]:
        return await self._select(_LIMITS.select())

    async def list(self, tenant_id: TenantId, subjects: Collection[str] | None = None) -> Sequence[Limit]:
        """The limits of a tenant; of some of its subjects only, if they are given."""
        query = _LIMITS.select().where(_LIMITS.c.tenant_id == tenant_id)
        if subjects is not None:
            query = query.where(_LIMITS.c.subject.in_(subjects))
        return await self._select(query)

    async def set(self, tenant_id: TenantId, limit: Limit, now_utc_us: int) -> None:
        """A new limit, or another amount for one that is there; what is used of it stays used."""
        statement = insert(self._connection, _LIMITS).values(
            limit_name=limit.name,
            tenant_id=tenant_id,
            subject=limit.subject,
            kind=limit.kind.value,
            amount=limit.amount,
            changed_utc_us=now_utc_us,
        )
        await self._connection.execute(
            statement.on_conflict_do_update(
                index_elements=[_LIMITS.c.limit_name],
                set_={"amount": limit.amount, "changed_utc_us": now_utc_us},
            )
        )
        await Revisions(self._connection).advance("limits")

    async def clear(self, tenant_id: TenantId, subject: str, kinds: Collection[LimitKind]) -> Sequence[Limit]:
        """Takes limits away and gives those that were there. One that is set again goes on in its window."""
        found = [limit for limit in await self.list(tenant_id, [subject]) if limit.kind in kinds]
        names = [limit.name for limit in found]
        await self._connection.execute(_LIMITS.delete().where(_LIMITS.c.limit_name.in_(names)))
        await Revisions(self._connection).advance("limits")
        return found

    async def exchange(
        self, gateway_id: GatewayId, exchange: Exchange, now_utc_us: int, lease_us: int
    ) -> Shares:
        """Takes what is given back, then shares out what is left. A limit that is gone grants all."""
        accounts = exchange.accounts()
        limits = await self._lock({account.limit for account in accounts})
        known = [account for account in accounts if account.limit in limits]
        used = await self._used(known)
        elsewhere = await self._held_elsewhere(known, gateway_id, now_utc_us)
        left = dict.fromkeys(accounts, AMOUNT_MAX)
        for account in known:
            mine = exchange.holding.get(account, 0) - exchange.giving.get(account, 0)
            others = elsewhere.get(account.limit, 0) if account in exchange.holding else used.get(account, 0)
            left[account] = limits[account.limit].amount - others - mine
        shares = share_out(left, exchange.asks, exchange.wishes)
        for account in known:
            granted = shares.granted[account]
            if account in exchange.holding:
                held = exchange.holding[account] + granted
                await self._lease(account.limit, gateway_id, held, now_utc_us + lease_us)
            elif account in used:
                await self._add_use(account, granted - exchange.giving.get(account, 0))
            else:
                await self._open_window(account, limits[account.limit], granted)
        return shares

    async def _select(self, query: Any) -> Sequence[Limit]:
        rows = await self._connection.execute(query.order_by(_LIMITS.c.limit_name))
        return [_limit(row) for row in rows]

    async def _lock(self, names: Collection[str]) -> Mapping[str, Limit]:
        """These limits. Until the transaction ends nobody else changes their use."""
        query = _LIMITS.select().where(_LIMITS.c.limit_name.in_(names))
        query = query.order_by(_LIMITS.c.limit_name).with_for_update()
        return {row.limit_name: _limit(row) for row in await self._connection.execute(query)}

    async def _used(self, accounts: Collection[Account]) -> Mapping[Account, int]:
        """Accounts of windows that have a row."""
        query = _WINDOWS.select().where(
            _WINDOWS.c.limit_name.in_({account.limit for account in accounts}),
            _WINDOWS.c.start_utc_s.in_({account.start_utc_s for account in accounts}),
        )
        rows = await self._connection.execute(query)
        return {Account(row.limit_name, row.start_utc_s): row.used for row in rows}

    async def _held_elsewhere(
        self, accounts: Collection[Account], gateway_id: GatewayId, now_utc_us: int
    ) -> Mapping[str, int]:
        """Places that living gateways other than this one hold, by limit; the dead ones' leases end here."""
        names = {account.limit for account in accounts if not account.start_utc_s}
        if not names:
            return {}
        of_these = _LEASES.c.limit_name.in_(names)
        await self._connection.execute(
            _LEASES.delete().where(of_these, _LEASES.c.expires_utc_us <= now_utc_us)
        )
        query = sa.select(_LEASES.c.limit_name, sa.func.sum(_LEASES.c.held).label("held"))
        query = query.where(of_these, _LEASES.c.gateway_id != gateway_id).group_by(_LEASES.c.limit_name)
        return {row.limit_name: int(row.held) for row in await self._connection.execute(query)}

    async def _lease(self, name: str, gateway_id: GatewayId, held: int, expires_utc_us: int) -> None:
        if not held:
            await self._connection.execute(
                _LEASES.delete().where(_LEASES.c.limit_name == name, _LEASES.c.gateway_id == gateway_id)
            )
            return
        statement = insert(self._connection, _LEASES).values(
            limit_name=name, gateway_id=gateway_id, held=held, expires_utc_us=expires_utc_us
        )
        await self._connection.execute(
            statement.on_conflict_do_update(
                index_elements=[_LEASES.c.limit_name, _LEASES.c.gateway_id],
                set_={"held": held, "expires_utc_us": expires_utc_us},
            )
        )

    async def _add_use(self, account: Account, amount: int) -> None:
        if amount:
            await self._connection.execute(
                _WINDOWS.update()
                .where(_WINDOWS.c.limit_name == account.limit, _WINDOWS.c.start_utc_s == account.start_utc_s)
                .values(used=_WINDOWS.c.used + amount)
            )

    async def _open_window(self, account: Account, limit: Limit, used: int) -> None:
        """The first use in a window; rows of older ones but the last are of no use any more."""
        await self._connection.execute(
            _WINDOWS.delete().where(
                _WINDOWS.c.limit_name == account.limit,
                _WINDOWS.c.start_utc_s < account.start_utc_s - limit.kind.window_s,
            )
        )
        await self._connection.execute(
            _WINDOWS.insert().values(limit_name=account.limit, start_utc_s=account.start_utc_s, used=used)
        )


def _limit(row: Any) -> Limit:
    return Limit(row.subject, LimitKind(row.kind), row.amount)
