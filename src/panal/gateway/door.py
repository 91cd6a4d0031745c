"""Who may come in: so many connections in all, and so many of one address before a key was shown.

Silence is what an attack costs nothing, so silent connections make room first. A stranger beyond its
address's share is not turned away but left unread until there is room; the newest comes first, because
a flood is mostly old. Only beyond the limit for all is somebody refused.
"""

from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Protocol

SILENT_S = 0.5
"""A connection that said nothing for so long gives its place to one that waits."""

FILLED_SHARE = 0.9
"""Beyond this part of all places, silent connections are closed, whoever they are."""


class Visitor(Protocol):
    """A client connection, as the door sees it."""

    address: str

    def silent_s(self, now_s: float) -> float | None:
        """How long it has been waited for; None while a request is read or answered."""
        ...

    def close_silent(self) -> None: ...

    def hold(self) -> None:
        """Read nothing of it until ``admit``."""
        ...

    def admit(self) -> None: ...

    def turn_away(self) -> None: ...


@dataclass(slots=True)
class Strangers:
    """Connections of one address that showed no key yet."""

    inside: set[Visitor] = field(default_factory=set)
    waiting: list[Visitor] = field(default_factory=list)


class Door:
    """All client connections of a process, over all its listeners."""

    def __init__(self, most: int, strangers_max: int) -> None:
        self._most = most
        self._strangers_max = strangers_max
        self._all: set[Visitor] = set()
        self._strangers: dict[str, Strangers] = {}

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, visitor: Visitor, now_s: float) -> None:
        """A new connection: admitted, held or turned away."""
        if len(self._all) >= self._most:
            visitor.turn_away()
            return
        self._all.add(visitor)
        strangers = self._strangers.get(visitor.address)
        if strangers is None:
            strangers = self._strangers[visitor.address] = Strangers()
        if len(strangers.inside) < self._strangers_max:
            strangers.inside.add(visitor)
            return
        strangers.waiting.append(visitor)
        visitor.hold()
        self._make_room(strangers, now_s)

    def known(self, visitor: Visitor) -> None:
        """It showed a valid key."""
        self._forget_stranger(visitor)

    def leave(self, visitor: Visitor) -> None:
        """The connection is gone."""
        if visitor in self._all:
            self._all.discard(visitor)
            self._forget_stranger(visitor)

    def look(self, now_s: float) -> None:
        """Let in who waits, at the cost of who is silent. Called twice a second."""
        for strangers in list(self._strangers.values()):
            if strangers.waiting:
                self._make_room(strangers, now_s)
        surplus = len(self._all) - int(self._most * FILLED_SHARE)
        if surplus > 0:
            for visitor in _longest_silent(self._all, now_s)[:surplus]:
                visitor.close_silent()

    def _make_room(self, strangers: Strangers, now_s: float) -> None:
        for silent in _longest_silent(strangers.inside, now_s)[: len(strangers.waiting)]:
            silent.close_silent()
            strangers.inside.discard(silent)
        self._let_in(strangers)

    def _let_in(self, strangers: Strangers) -> None:
        while strangers.waiting and len(strangers.inside) < self._strangers_max:
            next_one = strangers.waiting.pop()
            strangers.inside.add(next_one)
            next_one.admit()

    def _forget_stranger(self, visitor: Visitor) -> None:
        strangers = self._strangers.get(visitor.address)
        if strangers is None:
            return
        if visitor in strangers.inside:
            strangers.inside.discard(visitor)
            self._let_in(strangers)
        elif visitor in strangers.waiting:
            strangers.waiting.remove(visitor)
        if not strangers.inside and not strangers.waiting:
            del self._strangers[visitor.address]


def _longest_silent(visitors: set[Visitor], now_s: float) -> list[Visitor]:
    silent = [(age_s, visitor) for visitor in visitors if (age_s := visitor.silent_s(now_s)) is not None]
    silent.sort(key=lambda pair: -pair[0])
    return [visitor for age_s, visitor in silent if age_s >= SILENT_S]


def address_of(peer: tuple[str, int] | None) -> str:
    """What counts as one address: of IPv6 the network of 64 bits, which one customer has whole."""
    if peer is None:
        return ""
    host = peer[0]
    if ":" not in host or host.startswith("::ffff:"):
        return host
    return str(IPv6Address(int(IPv6Address(host.partition("%")[0])) >> 64 << 64))
