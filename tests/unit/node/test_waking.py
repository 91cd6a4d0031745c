"""A node's part in Wake-on-LAN: what it tells, what it sends, and where to."""

import socket
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from panal.core.clock import ManualClock
from panal.core.ids import InstanceId, NodeId
from panal.node import waking
from panal.node.counts import KeptCounts
from panal.node.reports import WAKE_TOLD_EACH_S, Reports
from panal.node.settings import AgentSettings
from panal.node.waking import EVERYBODY, WAKES_MAX, WAKES_WITHIN_S, Waker, own_macs, own_networks, told_macs
from panal.policy.waking import magic_packet
from panal.protocol.messages import Report

MAC = "3c:52:82:0a:0b:0c"


def card(mac: str, address: str = "", netmask: str | None = None) -> list[Any]:
    found = [SimpleNamespace(family=psutil.AF_LINK, address=mac, netmask=None)]
    if address:
        found.append(SimpleNamespace(family=socket.AF_INET, address=address, netmask=netmask))
    return found


ADDRESSES = {
    "lo": card("00:00:00:00:00:00", "127.0.0.1", "255.0.0.0"),
    "eth0": card(MAC.upper(), "10.1.2.3", "255.255.255.0"),
    "docker0": card("02:42:ac:11:00:02", "172.17.0.1", "255.255.0.0"),
    "tun0": card("00:00:00:00:00:00", "10.8.0.2", "255.255.255.255"),
    "odd": card("", "10.9.0.2", None),
}


class Sent:
    """In the place of the sockets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[bytes, tuple[str, int]]] = []
        monkeypatch.setattr(waking.socket, "socket", lambda *_kind: self)

    def __enter__(self) -> "Sent":
        return self

    def __exit__(self, *_error: object) -> None: ...

    def setsockopt(self, *_option: object) -> None: ...

    def setblocking(self, _flag: bool) -> None: ...

    def sendto(self, packet: bytes, address: tuple[str, int]) -> None:
        if address[0] == "172.17.255.255":
            raise OSError("network is down")
        self.sent.append((packet, address))


def test_real_cards_are_told_and_bridges_and_containers_are_not() -> None:
    assert own_macs(ADDRESSES) == (MAC,)
    assert own_networks(ADDRESSES) == [EVERYBODY, "10.1.2.255", "172.17.255.255"]


def test_a_node_that_did_not_opt_in_does_not_even_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: ADDRESSES)
    assert told_macs(True) == (MAC,)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: pytest.fail("asked for the cards"))
    assert told_macs(False) == ()


@pytest.mark.parametrize(("macs", "told"), [((MAC,), [MAC]), ((), [])])
def test_whether_it_may_be_woken_is_told_at_once_and_again_later(
    macs: tuple[str, ...], told: list[str]
) -> None:
    clock, sent = ManualClock(), list[Report]()
    settings = AgentSettings(node=NodeId("node_1"), agent_version="1", wake_macs=macs)
    reports = Reports(settings, InstanceId("ins_1"), KeptCounts(), sent.append, clock)
    reports.send()
    reports.send()
    assert [report.wake for report in sent] == [told], "an empty list takes back what was told before"
    clock.advance(WAKE_TOLD_EACH_S)
    reports.send()
    assert [report.wake for report in sent] == [told, told]


async def test_packets_go_to_its_own_networks_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)
    waker = Waker(ManualClock(), lambda: ADDRESSES)
    await waker.wake([MAC, "8.8.8.8", "ff:ff:ff:ff:ff:ff", "http://example.com", 7])
    packet = magic_packet(MAC)
    assert sent.sent == [(packet, (EVERYBODY, 9)), (packet, ("10.1.2.255", 9))]
    sent.sent.clear()
    await waker.wake(["10.0.0.1", "not an address"])
    assert sent.sent == []


async def test_a_flood_of_instructions_is_no_flood_of_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, clock = Sent(monkeypatch), ManualClock()
    waker = Waker(clock, lambda: {"eth0": ADDRESSES["eth0"]})
    for _ in range(WAKES_MAX * 3):
        await waker.wake([MAC])
    assert len(sent.sent) == 2 * WAKES_MAX
    clock.advance(WAKES_WITHIN_S)
    await waker.wake([MAC])
    assert len(sent.sent) == 2 * WAKES_MAX + 2
