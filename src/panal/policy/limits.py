"""How much may a key, a project or a tenant use? What a limit is, and how the store shares it out.

A limit counts requests or tokens in windows cut at UTC minutes and days, or requests that run at once.
Gateway processes take blocks of it from the store (``share_out``) and spend them in memory
(``policy/blocks.py``). What is in nobody's block is ``left``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

AMOUNT_MAX = 10**15
SHARE = 8
"""A block beyond what is needed at once is at most this part of what is left, so near the limit blocks
shrink to nothing."""


class LimitKind(StrEnum):
    """What is limited, and in which window. The value is stored and shown."""

    REQUESTS_PER_MINUTE = "requests_per_minute"
    REQUESTS_PER_DAY = "requests_per_day"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    TOKENS_PER_DAY = "tokens_per_day"
    CONCURRENCY = "concurrency"
    """Requests that run at once; it has no window."""

    @property
    def counts_tokens(self) -> bool:
        return self in (LimitKind.TOKENS_PER_MINUTE, LimitKind.TOKENS_PER_DAY)

    @property
    def counts_requests(self) -> bool:
        return self in (LimitKind.REQUESTS_PER_MINUTE, LimitKind.REQUESTS_PER_DAY)

    @property
    def window_s(self) -> int:
        """Length of the window in seconds, 0 for none."""
        return _WINDOW_S[self]

    def window_start_s(self, utc_s: float) -> int:
        """UTC seconds at which the window of this moment began; 0 for none."""
        length_s = self.window_s
        return int(utc_s // length_s) * length_s if length_s else 0

    @property
    def words(self) -> str:
        """As people say it: ``tokens a minute``."""
        return self.value.replace("_per_", " a ").replace("concurrency", "requests at once")


_WINDOW_S = {
    LimitKind.REQUESTS_PER_MINUTE: 60,
    LimitKind.TOKENS_PER_MINUTE: 60,
    LimitKind.REQUESTS_PER_DAY: 86_400,
    LimitKind.TOKENS_PER_DAY: 86_400,
    LimitKind.CONCURRENCY: 0,
}


@dataclass(frozen=True, slots=True)
class Limit:
    """``subject`` is the id of a key, a project or a tenant; its form says which."""

    subject: str
    kind: LimitKind
    amount: int

    @property
    def name(self) -> str:
        """One word for whose limit and which, for the store."""
        return f"{self.subject}:{self.kind.value}"


@dataclass(frozen=True, slots=True, order=True)
class Account:
    """One window of one limit. ``limit`` is its name; ``start_utc_s`` 0 where there is no window."""

    limit: str
    start_utc_s: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a gateway process gives and asks in one round trip.

    ``giving``: for each account of a window, what it gives back (negative: what was used beyond its block).
    ``holding``: for each limit without a window, how many of its requests run; the rest is given back.
    ``asks``: for each waiting request, what it needs of each account; it gets all of it or nothing.
    ``wishes``: for each account, how large a block is wished beyond that.
    """

    giving: Mapping[Account, int]
    holding: Mapping[Account, int]
    asks: Sequence[Mapping[Account, int]]
    wishes: Mapping[Account, int]

    def accounts(self) -> list[Account]:
        """All accounts that are touched, in the order in which everybody locks them."""
        found = {*self.giving, *self.holding, *self.wishes}
        found.update(account for ask in self.asks for account in ask)
        return sorted(found)


@dataclass(frozen=True, slots=True)
class Shares:
    """``accepted`` for each ask; ``granted`` and what is then ``left`` for each account."""

    accepted: tuple[bool, ...]
    granted: Mapping[Account, int]
    left: Mapping[Account, int]


def share_out(
    left: Mapping[Account, int], asks: Sequence[Mapping[Account, int]], wishes: Mapping[Account, int]
) -> Shares:
    """Grant each ask in whole or not at all, in their order; then blocks from a part of what is left.

    ``left`` may be below 0. No more than ``left`` is ever granted.
    """
    rest = dict(left)
    granted = dict.fromkeys(left, 0)
    accepted = []
    for ask in asks:
        good = all(rest[account] >= need for account, need in ask.items())
        accepted.append(good)
        if good:
            for account, need in ask.items():
                rest[account] -= need
                granted[account] += need
    for account, wish in wishes.items():
        if granted[account] > 0:
            block = max(0, min(wish, rest[account] // SHARE))
            rest[account] -= block
            granted[account] += block
    return Shares(tuple(accepted), granted, rest)
