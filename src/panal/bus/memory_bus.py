"""The bus inside one process, for tests: the same sides and bytes, and faults on demand.

Messages are encoded, go through a broker, and arrive in the next turn of the event loop, in order.
A cut side hears that its connection is gone and can neither send nor hear until it is restored.
"""

import asyncio
from collections.abc import Callable

from panal.bus.links import NOBODY_HEARS
from panal.bus.nats_client import LinkEvents
from panal.bus.nats_parser import Handler
from panal.bus.sides import ControllerSide, GatewaySide, NodeSide
from panal.core.errors import BusError
from panal.core.ids import GatewayId, NodeKey
from panal.protocol import subjects

CONTROLLER = "controller"
"""Name of the controller's side in ``cut`` and ``restore``."""

Loss = Callable[[str, bytes], bool]
"""Says of subject and payload whether this message shall be lost."""


class MemoryBroker:
    """Carries messages between the sides it makes."""

    def __init__(self) -> None:
        self._links: list[_MemoryLink] = []
        self._cut: set[str] = set()
        self._losses: list[Loss] = []
        self.lost = 0
        """Messages lost on purpose."""

    def gateway(self, gateway: GatewayId) -> GatewaySide:
        return GatewaySide(gateway, _MemoryLink(self, gateway), _MemoryLink(self, gateway))

    def controller(self) -> ControllerSide:
        return ControllerSide(_MemoryLink(self, CONTROLLER))

    def node(self, key: NodeKey) -> NodeSide:
        return NodeSide(key, _MemoryLink(self, key), _MemoryLink(self, key), lambda _credential: None)

    def cut(self, side: str) -> None:
        """Take a side (node key, gateway id or CONTROLLER) off the bus; it is told at once."""
        self._cut.add(side)
        self._tell(side, connected=False)

    def restore(self, side: str) -> None:
        self._cut.discard(side)
        self._tell(side, connected=True)

    def refuse(self, key: NodeKey, reason: str) -> None:
        """Cut a node and tell it that its credential is not accepted any more."""
        self.cut(key)
        for link in [link for link in self._links if link.side == key]:
            link.refused(reason)

    def lose(self, loss: Loss) -> None:
        """Lose every message for which ``loss(subject, payload)`` is true, until ``lose_nothing``."""
        self._losses.append(loss)

    def drop_frames(self, key: NodeKey, messages: int) -> None:
        """Lose the next messages with frames of a node."""
        left = [messages]
        prefix = f"panal.up.{subjects.checked_key(key)}.frames."

        def loss(subject: str, _payload: bytes) -> bool:
            if not left[0] or not subject.startswith(prefix):
                return False
            left[0] -= 1
            return True

        self.lose(loss)

    def lose_nothing(self) -> None:
        self._losses.clear()

    def is_cut(self, side: str) -> bool:
        return side in self._cut

    def add(self, link: "_MemoryLink") -> None:
        self._links.append(link)

    def remove(self, link: "_MemoryLink") -> None:
        self._links.remove(link)

    def carry(self, subject: bytes, payload: bytes, sender: "_MemoryLink", reply: bytes) -> None:
        if any(loss(subject.decode(), payload) for loss in self._losses):
            self.lost += 1
            return
        asyncio.get_running_loop().call_soon(self._deliver, subject, payload, sender, reply)

    def _deliver(self, subject: bytes, payload: bytes, sender: "_MemoryLink", reply: bytes) -> None:
        heard = [link.receive(subject, payload) for link in list(self._links) if link.side not in self._cut]
        if reply and not any(heard) and sender.connected:
            sender.receive(reply, NOBODY_HEARS)

    def _tell(self, side: str, *, connected: bool) -> None:
        for link in [link for link in self._links if link.side == side]:
            link.tell(connected)


class _MemoryLink:
    """One link of one side."""

    def __init__(self, broker: MemoryBroker, side: str) -> None:
        self.side = side
        self._broker = broker
        self._subscriptions: list[tuple[list[bytes], Handler]] = []
        self._events: LinkEvents | None = None

    @property
    def connected(self) -> bool:
        return self._events is not None and not self._broker.is_cut(self.side)

    def subscribe(self, subject: str, handler: Handler) -> bytes:
        self._subscriptions.append((subject.encode().split(b"."), handler))
        return str(len(self._subscriptions)).encode()

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"") -> None:
        if not self.connected:
            raise BusError("The bus is not connected.")
        self._broker.carry(subject, payload, self, reply)

    async def start(self, events: LinkEvents, timeout_s: float) -> None:
        if self._broker.is_cut(self.side):
            raise BusError(f"The bus cannot be reached within {timeout_s:g} s.")
        self._events = events
        self._broker.add(self)
        events.on_connection(True)

    async def replace(self, timeout_s: float) -> None:
        if not self.connected:
            raise BusError(f"The bus cannot be reached within {timeout_s:g} s.")

    async def flush(self, timeout_s: float) -> None:
        if not self.connected:
            raise BusError(f"The bus did not answer within {timeout_s:g} s.")
        await asyncio.sleep(0)

    async def close(self) -> None:
        if self._events is not None:
            self._events = None
            self._broker.remove(self)

    def receive(self, subject: bytes, payload: bytes) -> bool:
        """Whether some subscription of this link heard it."""
        words = subject.split(b".")
        heard = False
        for pattern, handler in self._subscriptions:
            if self._events is not None and _matches(pattern, words):
                heard = True
                handler(subject, payload)
        return heard

    def tell(self, connected: bool) -> None:
        if self._events is not None:
            self._events.on_connection(connected)

    def refused(self, reason: str) -> None:
        if self._events is not None:
            self._events.on_refused(reason)


def _matches(pattern: list[bytes], words: list[bytes]) -> bool:
    for index, part in enumerate(pattern):
        if part == b">":
            return len(words) > index
        if index >= len(words) or part not in (b"*", words[index]):
            return False
    return len(pattern) == len(words)
