"""What one gateway process holds of each limit: reserve at a request's start, settle at its end.

All-or-nothing over every limit of a caller, so that a refused request costs nothing anywhere. Pure: times
are arguments (``now_s`` monotonic, ``utc_s`` UTC seconds); asking the store is somebody else's work.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from panal.policy.limits import Account, Exchange, Limit, Shares

LEASE_S = 15.0
"""Places of requests that run at once come back after this time when their gateway process is gone."""
LEASE_SAFE_S = 12.0
"""A process trusts its own places for no longer than this without a word from the store."""
SURE_S = 0.2
"""For this long the store's 'no' is repeated without asking it again."""
BUSY_S = 1.0
"""Who asks again within this time is busy, and wishes for twice as much."""
KEEP_S = 2.0
KEEP_NEAR_S = 0.2
"""An unused block goes back after this time: sooner where others may be short of it."""
WISH_REQUESTS = 4
"""The first block is for so many requests more."""


class Block:
    """A process's part of one limit in its current window."""

    __slots__ = (
        "amount",
        "asked_s",
        "free",
        "in_tokens",
        "kind",
        "left",
        "name",
        "running",
        "seen_s",
        "start_utc_s",
        "trusted_until_s",
        "used_s",
        "window_s",
        "wish",
    )

    def __init__(self, limit: Limit) -> None:
        self.name = limit.name
        self.kind = limit.kind
        self.in_tokens = limit.kind.counts_tokens
        self.window_s = limit.kind.window_s
        self.amount = limit.amount
        self.start_utc_s = -1
        self.running = 0
        """Requests that hold a place, where the limit is on requests at once."""
        self.asked_s = self.used_s = float("-inf")
        self.wish = 0
        self._fresh()

    def _fresh(self) -> None:
        self.free = 0
        self.left = self.amount
        """In nobody's block, as the store said last."""
        self.seen_s = float("-inf")
        self.trusted_until_s = float("-inf")

    def account(self, now_s: float, utc_s: float) -> Account:
        """The account of this moment, after ``turn``."""
        self.turn(now_s, utc_s)
        return Account(self.name, self.start_utc_s)

    def turn(self, now_s: float, utc_s: float) -> None:
        """Come to this moment: what is held of an older window is worth nothing any more."""
        if utc_s - self.start_utc_s >= self.window_s:
            start_utc_s = self.kind.window_start_s(utc_s)
            if start_utc_s > self.start_utc_s:
                self.start_utc_s = start_utc_s
                self._fresh()
        if not self.window_s and now_s > self.trusted_until_s:
            self.free = 0

    def change(self, limit: Limit) -> None:
        """Another amount from now on."""
        self.left += limit.amount - self.amount
        self.amount = limit.amount
        self.seen_s = float("-inf")

    def need(self, tokens: int) -> int:
        """What a request of so many tokens takes."""
        return tokens if self.in_tokens else 1

    @property
    def remaining(self) -> int:
        """What may still be reserved, as far as this process knows."""
        return max(0, self.free + self.left)

    @property
    def near(self) -> bool:
        """Whether little is left, so that others may be short of what this process holds."""
        return self.left < max(16, self.amount // 8)

    def reset_s(self, utc_s: float) -> int:
        """Whole seconds, at least 1, until the window ends; 1 where there is none."""
        if not self.window_s:
            return 1
        return max(1, math.ceil(self.kind.window_start_s(utc_s) + self.window_s - utc_s))


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a running request holds: of each block the amount and the window it was taken in."""

    held: tuple[tuple[Block, int, int], ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The limit that is in the way. ``never``: the request is larger than the whole limit."""

    block: Block
    need: int
    remaining: int
    reset_s: int

    @property
    def never(self) -> bool:
        return self.need > self.block.amount


class Short:
    """Not enough in the blocks of this process: the store has to be asked."""


SHORT = Short()


class Blocks:
    """Everything that one process holds."""

    def __init__(self) -> None:
        self._of_subject: dict[str, dict[str, Block]] = {}

    def set_limits(self, limits: Iterable[Limit]) -> None:
        """The limits as they are now. Those that stay keep what is held of them."""
        before, self._of_subject = self._of_subject, {}
        for limit in limits:
            known = before.get(limit.subject, {}).get(limit.name)
            if known is None:
                known = Block(limit)
            elif known.amount != limit.amount:
                known.change(limit)
            self._of_subject.setdefault(limit.subject, {})[limit.name] = known

    def of(self, subjects: Iterable[str]) -> tuple[Block, ...]:
        """All limits of these subjects."""
        return tuple(block for subject in subjects for block in self._of_subject.get(subject, {}).values())

    def every(self) -> list[Block]:
        return [block for blocks in self._of_subject.values() for block in blocks.values()]


def reserve(
    blocks: Sequence[Block], tokens: int, now_s: float, utc_s: float
) -> Reservation | Refusal | Short:
    """Take what a request of ``tokens`` needs from every block, or from none."""
    short = False
    for block in blocks:
        block.turn(now_s, utc_s)
        need = block.need(tokens)
        if need > block.amount or (need > block.free + block.left and now_s - block.seen_s < SURE_S):
            return refusal(block, tokens, utc_s)
        short = short or need > block.free
    if short:
        return SHORT
    held = []
    for block in blocks:
        need = block.need(tokens)
        block.free -= need
        block.used_s = now_s
        if not block.window_s:
            block.running += 1
        held.append((block, need, block.start_utc_s))
    return Reservation(tuple(held))


def refusal(block: Block, tokens: int, utc_s: float) -> Refusal:
    return Refusal(block, block.need(tokens), block.remaining, block.reset_s(utc_s))


def settle(reservation: Reservation, tokens: int, now_s: float, *, counts: bool) -> bool:
    """The request ended and used ``tokens``; ``counts``: whether it counts as a request at all.

    Gives whether the store should hear of it soon: more was used than reserved.
    """
    overdrawn = False
    for block, taken, start_utc_s in reservation.held:
        block.used_s = now_s
        if not block.window_s:
            block.running -= 1
            block.free += 1
        elif block.start_utc_s == start_utc_s:
            used = tokens if block.in_tokens else int(counts)
            block.free += taken - used
            overdrawn = overdrawn or block.free < 0
    return overdrawn


def exchange(
    waiting: Sequence[tuple[Sequence[Block], int]], returning: Iterable[Block], now_s: float, utc_s: float
) -> tuple[Exchange, Mapping[Account, Block]]:
    """What to say to the store for requests that wait (their blocks and tokens) and blocks to give back.

    What is free of all these blocks is given back with it and asked for anew, so that it counts once.
    """
    giving: dict[Account, int] = {}
    holding: dict[Account, int] = {}
    wishes: dict[Account, int] = {}
    touched: dict[Account, Block] = {}
    asks = []
    for blocks, tokens in waiting:
        ask = {}
        for block in blocks:
            account = block.account(now_s, utc_s)
            ask[account] = block.need(tokens)
            if account not in touched:
                block.wish = block.wish * 2 if now_s - block.asked_s < BUSY_S else 0
                block.wish = min(max(block.wish, WISH_REQUESTS * block.need(tokens)), block.amount)
                block.asked_s = now_s
                wishes[account] = block.wish
                touched[account] = block
        asks.append(ask)
    for block in returning:
        touched.setdefault(block.account(now_s, utc_s), block)
    for account, block in touched.items():
        if block.window_s:
            giving[account] = block.free
        else:
            holding[account] = block.running
        block.left += block.free  # so that 'remaining' stays true during the round trip
        block.free = 0
    return Exchange(giving, holding, asks, wishes), touched


def take(shares: Shares, touched: Mapping[Account, Block], asked_s: float) -> None:
    """What the store granted. ``asked_s``: when it was asked, monotonic.

    Of a window that ended meanwhile nothing is taken.
    """
    for account, block in touched.items():
        if block.start_utc_s == account.start_utc_s:
            block.free += shares.granted[account]
            block.left = shares.left[account]
            block.seen_s = asked_s
            block.trusted_until_s = asked_s + LEASE_SAFE_S


def keep_debts(exchange: Exchange, touched: Mapping[Account, Block]) -> None:
    """The store did not answer. What was given back is lost until the window ends, what is owed is not."""
    for account, given in exchange.giving.items():
        block = touched[account]
        if given < 0 and block.start_utc_s == account.start_utc_s:
            block.free += given
            block.left -= given


def due(blocks: Iterable[Block], now_s: float, utc_s: float) -> list[Block]:
    """Blocks of which the store should hear: unused for a while, overdrawn, or a lease to be renewed."""
    found = []
    for block in blocks:
        block.turn(now_s, utc_s)
        idle_s = now_s - max(block.used_s, block.asked_s)
        keep_s = KEEP_NEAR_S if block.near else KEEP_S
        unused = block.free > 0 and idle_s >= keep_s
        renew = block.running > 0 and block.trusted_until_s - now_s < LEASE_SAFE_S * 0.75
        if unused or renew or block.free < 0:
            found.append(block)
    return found
