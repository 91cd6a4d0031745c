"""Wake-on-LAN on a node: its own addresses where it opted in, and packets for sleeping neighbours.

An instruction names hardware addresses and nothing else: where to, which port and what is sent is fixed
here, so that no node can be made to send anything elsewhere than to its own networks.
"""

import asyncio
import ipaddress
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psutil

from panal.core.clock import Clock
from panal.policy.waking import WAKE_PORT, magic_packet, plain_macs
from panal.telemetry.logs import fields

EVERYBODY = "255.255.255.255"
NETWORKS_MAX = 16
WAKES_MAX, WAKES_WITHIN_S = 10, 60.0
"""More instructions in that time are not followed."""

Addresses = Mapping[str, Sequence[Any]]
"""What psutil.net_if_addrs tells, by network card."""


def own_macs(addresses: Addresses) -> tuple[str, ...]:
    """Of real network cards: bridges, containers and the like give themselves local addresses."""
    texts = [one.address for found in addresses.values() for one in found if one.family == psutil.AF_LINK]
    return tuple(mac for mac in plain_macs(texts) if not int(mac[:2], 16) & 2)


def own_networks(addresses: Addresses) -> list[str]:
    """The broadcast addresses of this machine's own IPv4 networks, and the one of all of them."""
    found = {_broadcast(one) for each in addresses.values() for one in each if one.family == socket.AF_INET}
    return [EVERYBODY, *sorted(address for address in found if address)][:NETWORKS_MAX]


def _broadcast(one: Any) -> str:
    """From address and mask, since not every system tells it; empty for loopback and for lines of two."""
    try:
        network = ipaddress.IPv4Interface(f"{one.address}/{one.netmask}").network
    except ValueError:
        return ""
    return "" if network.is_loopback or network.prefixlen > 30 else str(network.broadcast_address)


def told_macs(opted_in: bool) -> tuple[str, ...]:
    """What the node tells of itself: nothing unless its owner or operators opted in."""
    if not opted_in:
        return ()
    found = own_macs(psutil.net_if_addrs())
    if not found:
        logging.getLogger("panal.node").warning(
            "node.wake is on, but this machine has no network card that could be woken",
            extra=fields(action="wake_without_card"),
        )
    return found


def send(packets: Sequence[bytes], addresses: Addresses) -> int:
    """Broadcast each packet on each network. Returns how many went out; a network that is down is skipped."""
    sent = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.setblocking(False)
        for network in own_networks(addresses):
            for packet in packets:
                try:
                    sender.sendto(packet, (network, WAKE_PORT))
                    sent += 1
                except OSError:
                    continue
    return sent


class Waker:
    """Wakes neighbours when told to."""

    def __init__(self, clock: Clock, addresses: Callable[[], Addresses] = psutil.net_if_addrs) -> None:
        self._clock = clock
        self._addresses = addresses
        self._wakes_s: deque[float] = deque(maxlen=WAKES_MAX)
        self._log = logging.getLogger("panal.node")

    async def wake(self, macs: Iterable[object]) -> None:
        """Send the packets of those that are addresses of one machine."""
        wanted = plain_macs(macs)
        now_s = self._clock.monotonic_seconds()
        full = len(self._wakes_s) == WAKES_MAX and now_s - self._wakes_s[0] < WAKES_WITHIN_S
        if full or not wanted:
            reason = "too many in a minute" if full else "no address"
            self._log.warning("no wake packet is sent: %s", reason, extra=fields(action="wake_refused"))
            return
        self._wakes_s.append(now_s)
        packets = [magic_packet(mac) for mac in wanted]
        sent = await asyncio.to_thread(lambda: send(packets, self._addresses()))
        self._log.info("%d wake packets were sent", sent, extra=fields(action="wake_sent"))
