"""Who leaves the queue next: a bounded waiting room, fair between tenants, in order within one. Pure."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

from panal.core.errors import QueueFull

T = TypeVar("T")


class WaitingRoom(Generic[T]):
    """Tenants take turns; within a tenant the first comes first. All operations are O(1) or O(tenants)."""

    def __init__(self, length_max: int) -> None:
        self._length_max = length_max
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def enter(self, tenant: str, who: T) -> None:
        """Raises QueueFull."""
        if self._length >= self._length_max:
            raise QueueFull(
                f"{self._length_max} requests are waiting already. Try again in a moment.", retry_after_s=2
            )
        self._lines.setdefault(tenant, deque()).append(who)
        self._length += 1

    def leave(self, tenant: str, who: T) -> None:
        """Take ``who`` out, wherever it stands; it may be gone already."""
        line = self._lines.get(tenant)
        if line is None:
            return
        try:
            line.remove(who)
        except ValueError:
            return
        self._length -= 1
        if not line:
            del self._lines[tenant]

    def in_order(self) -> list[T]:
        """Everybody, in the order in which they should be asked: one of each tenant, round after round."""
        rounds: list[T] = []
        lines = [list(line) for line in self._lines.values()]
        longest = max((len(line) for line in lines), default=0)
        for position in range(longest):
            rounds.extend(line[position] for line in lines if position < len(line))
        return rounds

    def served(self, tenant: str) -> None:
        """The tenant had its turn: it stands behind the others now."""
        if tenant in self._lines:
            self._lines.move_to_end(tenant)
