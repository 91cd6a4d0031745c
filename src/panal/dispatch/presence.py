"""Tells nodes that this gateway lives, and which attempts it follows: see node/presence.py."""

from collections.abc import Iterable

from panal.bus.seam import GatewayBus
from panal.core.clock import Clock
from panal.core.errors import BusError
from panal.core.ids import NodeKey
from panal.protocol.messages import Present
from panal.scheduling.routing import Choice

TOLD_EACH_S = 1.0
NAMED_MAX = 4096
"""So many names fit into a message with room to spare; of more attempts on one node no list is sent."""

Instance = tuple[NodeKey, str]


class Presence:
    """Bounded by the nodes that run something for this gateway now."""

    def __init__(self, bus: GatewayBus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._told_s: dict[Instance, float] = {}
        self._round_s = float("-inf")

    def opened(self, choice: Choice) -> None:
        """A node that has not heard of us lately must know from the first attempt on whom to listen for."""
        where = _where(choice)
        now_s = self._clock.monotonic_seconds()
        if now_s - self._told_s.get(where, float("-inf")) > TOLD_EACH_S:
            self._tell(where, [], partial=True)
            self._told_s[where] = now_s

    def tell(self, attempts: Iterable[tuple[str, Choice]]) -> None:
        """Called often; each second every node hears the names of its own attempts."""
        now_s = self._clock.monotonic_seconds()
        if now_s - self._round_s < TOLD_EACH_S:
            return
        self._round_s = now_s
        named: dict[Instance, list[str]] = {}
        for name, choice in attempts:
            named.setdefault(_where(choice), []).append(name)
        for where, names in named.items():
            many = len(names) > NAMED_MAX
            self._tell(where, [] if many else names, partial=many)
        self._told_s = dict.fromkeys(named, now_s)

    def _tell(self, where: Instance, names: list[str], *, partial: bool) -> None:
        key, instance = where
        try:
            self._bus.present(
                key,
                Present(gateway=self._bus.gateway, instance=instance, attempts=names, partial=partial),
            )
        except BusError:
            return  # said again in a second; nodes excuse a bus that is away


def _where(choice: Choice) -> Instance:
    return choice.replica.key, choice.replica.instance
