"""Slows down guessing: so many failures a minute for one address, then a pause."""

import ipaddress
import math
from collections import OrderedDict, deque

from panal.core.clock import Clock
from panal.core.errors import CapacityError

FAILURES_MAX = 10
WINDOW_S = 60.0
ADDRESSES_MAX = 10_000


class FailureLimit:
    """Counts failures by peer address, IPv6 by its /64. The address gives no rights, it only slows down.

    When more addresses fail than can be remembered, the ones that failed least recently are forgotten.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, peer_address: str) -> None:
        """Raises CapacityError, with the seconds to wait, after too many failures."""
        failures = self._failures.get(network_of(peer_address))
        if failures is None:
            return
        now = self._clock.monotonic_seconds()
        while failures and now - failures[0] >= WINDOW_S:
            failures.popleft()
        if len(failures) >= FAILURES_MAX:
            wait_s = math.ceil(WINDOW_S - (now - failures[0]))
            raise CapacityError(
                f"Too many failed attempts from this address; try again in {wait_s} s.", retry_after_s=wait_s
            )

    def note_failure(self, peer_address: str) -> None:
        network = network_of(peer_address)
        failures = self._failures.setdefault(network, deque(maxlen=FAILURES_MAX))
        failures.append(self._clock.monotonic_seconds())
        self._failures.move_to_end(network)
        if len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)


def network_of(peer_address: str) -> str:
    """The address, IPv6 as its /64: what counts as one caller."""
    try:
        address = ipaddress.ip_address(peer_address.partition("%")[0])
    except ValueError:
        return peer_address[:64]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(address)
