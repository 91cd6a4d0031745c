"""Connections to a real nats-server: refusals, expiry, loss, return, and going over without loss."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from panal.bus import back_off, nats_client
from panal.bus.authority_file import authority_path, load_authority, save_revocations
from panal.bus.connector import Servers
from panal.bus.credentials import Login
from panal.bus.nats_bus import NatsGatewayBus, NatsNodeBus
from panal.bus.nats_client import NatsClient
from panal.bus.nats_config import NatsServerSettings, TlsFiles
from panal.bus.nats_server import NatsServer
from panal.core.clock import SystemClock
from panal.core.errors import BusError
from panal.core.ids import GatewayId, NodeKey
from panal.identity.certificates import create_or_load_ca, server_certificate
from panal.protocol.messages import Acknowledge, Cancel, Event, Frame, Heartbeat, Message
from tests.support.hostile_client import is_refused
from tests.support.nats_installation import LOCAL_NAMES, NatsInstallation
from tests.support.recorders import GatewayRecorder, LinkRecorder, NodeRecorder, run_attempt

ONE = GatewayId("gw_one")


class Pair:
    """A gateway and a node on one server."""

    def __init__(self, installation: NatsInstallation) -> None:
        self.installation = installation
        self.signing_key = installation.new_key()
        self.key = NodeKey(self.signing_key.public)
        self.gateway: NatsGatewayBus = installation.gateway(ONE)
        self.node: NatsNodeBus = installation.node(self.signing_key)
        self.heard_gateway, self.heard_node = GatewayRecorder(), NodeRecorder()

    async def start(self) -> None:
        await self.gateway.start(self.heard_gateway)
        await self.node.start(self.heard_node)

    async def exchange(self, number: int = 0) -> None:
        """One message each way arrives."""
        messages, frames = len(self.heard_node.messages), len(self.heard_gateway.frames)
        self.gateway.cancel(self.key, Cancel(attempt=f"a{number}.1", reason="test"))
        self.node.send_frames(ONE, [Frame(attempt="a.1", number=number, events=[])])
        await self.heard_node.until(lambda: len(self.heard_node.messages) == messages + 1)
        await self.heard_gateway.until(lambda: len(self.heard_gateway.frames) == frames + 1)

    async def close(self) -> None:
        await self.node.close()
        await self.gateway.close()


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[NatsInstallation]:
    installation = NatsInstallation(tmp_path)
    await installation.server.start()
    yield installation
    await installation.server.stop()


@pytest.fixture
async def pair(installation: NatsInstallation) -> AsyncIterator[Pair]:
    pair = Pair(installation)
    await pair.start()
    yield pair
    await pair.close()


# --- refusals -----------------------------------------------------------------------------------------


async def test_a_revoked_node_is_cut_at_once_and_others_stay(
    installation: NatsInstallation, pair: Pair
) -> None:
    bad = Pair(installation)
    await bad.node.start(bad.heard_node)
    revoked = installation.authority.revoke(bad.key, int(installation.clock.utc_seconds()) + 1)
    async with asyncio.timeout(1.0):
        await installation.push(revoked)
        await bad.heard_node.until(lambda: bool(bad.heard_node.refusals))
    assert bad.heard_node.connections[-1] is False
    await pair.exchange()
    assert pair.heard_node.connections == [True]
    assert pair.heard_gateway.connections == [True]
    await bad.node.close()


async def test_a_revocation_outlives_the_server_and_the_program(installation: NatsInstallation) -> None:
    key, other = installation.new_key(), installation.new_key()
    credential = installation.credential(key)
    path = authority_path(installation.home)
    elsewhere = load_authority(path, installation.clock)  # another gateway process of the same home
    account_jwt = elsewhere.revoke(key.public, int(installation.clock.utc_seconds()) + 1)
    save_revocations(path, elsewhere)
    await installation.push(account_jwt)
    for program_is_new in (False, True):
        installation.kill_server()
        await installation.server.wait()
        if program_is_new:
            authority = load_authority(path, installation.clock)
            installation.server = NatsServer(installation.settings, authority)
        await installation.server.start()
        assert await is_refused(installation, credential, key)
        assert not await is_refused(installation, installation.credential(other), other)


async def test_a_later_credential_for_a_revoked_key_is_accepted(installation: NatsInstallation) -> None:
    key = installation.new_key()
    revoked_at = int(installation.clock.utc_seconds()) - 1
    await installation.push(installation.authority.revoke(key.public, revoked_at))
    assert not await is_refused(installation, installation.credential(key), key)


async def test_an_expired_credential_is_told_and_a_fresh_one_brings_the_node_back(
    installation: NatsInstallation, pair: Pair
) -> None:
    short = Pair(installation)
    short.node = installation.node(short.signing_key, installation.credential(short.signing_key, 3.0))
    await short.node.start(short.heard_node)
    await short.heard_node.until(lambda: bool(short.heard_node.refusals))
    await short.heard_node.until(lambda: short.heard_node.connections == [True, False])
    async with asyncio.timeout(10):
        while short.node._links.data.connected or short.node._links.news.connected:
            await asyncio.sleep(0.01)
    with pytest.raises(BusError):
        short.node.heartbeat(Heartbeat(node="n", instance="i", sequence=1, state="serving"))
    await short.node.renew(installation.credential(short.signing_key))
    assert short.heard_node.connections == [True, False, True]
    assert len(short.heard_node.refusals) == 1
    pair.gateway.cancel(short.key, Cancel(attempt="a.1", reason="x"))
    await short.heard_node.until(lambda: len(short.heard_node.messages) == 1)
    await short.node.close()


async def test_a_refused_start_says_so_in_time(installation: NatsInstallation) -> None:
    key, other = installation.new_key(), installation.new_key()
    stolen = installation.credential(other)
    client = NatsClient(
        installation.servers, Login(lambda: stolen, key.sign), name="thief", randomness=lambda: 0.5
    )
    heard = LinkRecorder()
    with pytest.raises(BusError, match="Authorization Violation"):
        await client.start(heard, 0.5)
    assert heard.refusals
    assert heard.connections == []


async def test_renewing_with_a_refused_credential_fails_and_the_old_connection_stays(pair: Pair) -> None:
    other = pair.installation.new_key()
    with pytest.raises(BusError):
        await pair.node.renew(pair.installation.credential(other))
    assert pair.heard_node.refusals
    await pair.exchange()
    assert pair.heard_node.connections == [True]


async def test_a_server_of_another_ca_is_not_spoken_to(
    installation: NatsInstallation, tmp_path: Path
) -> None:
    other = create_or_load_ca(tmp_path / "other", SystemClock())
    key = installation.new_key()
    asked: list[bytes] = []

    def sign(nonce: bytes) -> bytes:
        asked.append(nonce)
        return key.sign(nonce)

    login = Login(lambda: installation.credential(key), sign)
    servers = Servers.at([installation.server.url], other.pem)
    client = NatsClient(servers, login, name="careful", randomness=lambda: 0.5)
    with pytest.raises(BusError, match="certificate"):
        await client.start(LinkRecorder(), 0.5)
    assert asked == []


async def test_a_violation_is_told_and_the_connection_stays(installation: NatsInstallation) -> None:
    key = installation.new_key()
    login = Login(lambda: installation.credential(key), key.sign)
    client = NatsClient(installation.servers, login, name="curious", randomness=lambda: 0.5)
    heard = LinkRecorder()
    await client.start(heard, 5.0)
    client.subscribe("panal.down.>", lambda _subject, _payload: None)
    client.publish(b"panal.down.x.run", b"x")
    await heard.until(lambda: len(heard.violations) == 2)
    await client.flush(5.0)
    assert heard.connections == [True]
    await client.close()


# --- loss and return ----------------------------------------------------------------------------------


async def test_all_come_back_after_the_server_was_killed_with_order_kept_and_nothing_doubled(
    pair: Pair,
) -> None:
    await pair.exchange(0)
    sent = lost = 0
    killed = asyncio.create_task(_kill_and_restart(pair.installation))
    while not killed.done() or pair.heard_node.connections[-1] is False or not pair.node.connected:
        sent += 1
        try:
            pair.node.send_frames(ONE, [Frame(attempt="a.1", number=sent, events=[])])
        except BusError:
            lost += 1
        await asyncio.sleep(0.002)
    await killed
    await pair.heard_gateway.until(lambda: pair.gateway.connected)
    last = sent + 1
    pair.node.send_frames(ONE, [Frame(attempt="a.1", number=last, events=[])])
    await pair.heard_gateway.until(lambda: pair.heard_gateway.frames[-1][1].number == last)
    numbers = [frame.number for _, frame in pair.heard_gateway.frames]
    assert numbers == sorted(set(numbers))
    assert lost > 0
    assert pair.heard_node.connections == [True, False, True]
    assert pair.heard_gateway.connections == [True, False, True]
    await pair.exchange(last + 1)


async def _kill_and_restart(installation: NatsInstallation) -> None:
    await asyncio.sleep(0.05)
    installation.kill_server()
    await installation.restart_server()


async def test_a_server_that_is_frozen_is_away_and_afterwards_nothing_is_lost(pair: Pair) -> None:
    await pair.exchange(0)
    assert pair.installation.server.pid is not None
    os.kill(pair.installation.server.pid, signal.SIGSTOP)
    try:
        await pair.heard_node.until(lambda: not pair.node.connected)
        await pair.heard_gateway.until(lambda: not pair.gateway.connected)
        assert not await pair.node.answers(0.1)
        for number in range(1, 20):
            pair.node.send_frames(ONE, [Frame(attempt="a.1", number=number, events=[])])
    finally:
        os.kill(pair.installation.server.pid, signal.SIGCONT)
    await pair.heard_gateway.until(lambda: pair.gateway.connected)
    await pair.heard_node.until(lambda: pair.node.connected)
    await pair.heard_gateway.until(lambda: len(pair.heard_gateway.frames) == 20)
    assert [frame.number for _, frame in pair.heard_gateway.frames] == list(range(20))
    assert pair.heard_node.connections == [True, False, True]
    assert pair.heard_gateway.connections == [True, False, True]


async def test_every_way_back_waits_for_a_time_that_was_drawn(
    installation: NatsInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty that lose their server in one moment ask for it again in forty different ones."""
    paused: list[float] = []

    async def pause(_client: NatsClient, seconds: float) -> None:
        paused.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(NatsClient, "_pause", pause)
    key = installation.new_key()
    login = Login(lambda: installation.credential(key), key.sign)
    clients = [
        NatsClient(installation.servers, login, name=f"{n}", randomness=random.Random(n).random)
        for n in range(40)
    ]
    events = [LinkRecorder() for _ in clients]
    for client, heard in zip(clients, events, strict=True):
        await client.start(heard, 10.0)
    monkeypatch.setattr(nats_client, "BACK_OFF_S_MAX", -1.0)  # each of them was connected for long
    assert paused == []
    installation.kill_server()
    for heard in events:
        await heard.until(lambda heard=heard: heard.connections[-1] is False)  # type: ignore[misc]
    async with asyncio.timeout(10.0):
        while len(paused) < len(clients):
            await asyncio.sleep(0.01)
    first = paused[: len(clients)]
    assert all(0.0 <= seconds < back_off.SPREAD_S for seconds in first)
    assert len(set(first)) == len(clients)
    for client in clients:
        await client.close()


async def test_start_waits_for_a_server_that_comes_later(tmp_path: Path) -> None:
    installation = NatsInstallation(tmp_path)
    gateway = installation.gateway(ONE)
    starting = asyncio.create_task(gateway.start(GatewayRecorder()))
    await asyncio.sleep(0)
    await installation.server.start()
    await starting
    assert gateway.connected
    await gateway.close()
    await installation.server.stop()


async def test_a_bus_that_is_not_there_is_an_error_with_a_reason(tmp_path: Path) -> None:
    installation = NatsInstallation(tmp_path)
    key = installation.new_key()
    login = Login(lambda: installation.credential(key), key.sign)
    client = NatsClient(installation.servers, login, name="lonely", randomness=lambda: 0.5)
    with pytest.raises(BusError, match="cannot be reached"):
        await client.start(LinkRecorder(), 0.3)


async def test_a_second_address_serves_when_the_first_is_dead(installation: NatsInstallation) -> None:
    key = installation.new_key()
    login = Login(lambda: installation.credential(key), key.sign)
    servers = installation.servers_at(["tls://127.0.0.1:1", installation.server.url])
    client = NatsClient(servers, login, name="patient", randomness=lambda: 0.5)
    await client.start(LinkRecorder(), 5.0)
    await client.flush(5.0)
    await client.close()


async def test_what_was_published_before_close_still_arrives(
    installation: NatsInstallation, pair: Pair
) -> None:
    body = b"x" * 100_000
    for number in range(20):
        frame = Frame(attempt="a.1", number=number, events=[Event(data=body)])
        pair.node.send_frames(ONE, [frame])
    await pair.node.close()
    await pair.heard_gateway.until(lambda: len(pair.heard_gateway.frames) == 20)


async def test_a_bus_that_takes_nothing_more_says_so_and_stays_bounded(
    installation: NatsInstallation, pair: Pair
) -> None:
    """Published in one turn of the loop, so that nothing can leave meanwhile but what the kernel takes."""
    frame = Frame(attempt="a.1", number=0, events=[Event(data=b"x" * 250_000)])
    sent = 0
    with pytest.raises(BusError, match="Too much"):
        for _ in range(400):
            pair.node.send_frames(ONE, [frame])
            sent += 1
    assert 8_000_000 < sent * 250_000 < 60_000_000


# --- going over ---------------------------------------------------------------------------------------


async def test_renewing_under_load_loses_and_doubles_nothing_and_keeps_the_order(
    installation: NatsInstallation, pair: Pair
) -> None:
    done = asyncio.Event()
    sent_frames: list[int] = []
    sent_down: list[Message] = []

    async def talk() -> None:
        number = 0
        while not done.is_set():
            for _ in range(5):
                pair.node.send_frames(ONE, [Frame(attempt="a.1", number=number, events=[])])
                sent_frames.append(number)
                down: Message
                if number % 10 == 0:
                    down = run_attempt(f"req_{number}.1")
                    pair.gateway.run(pair.key, down)
                else:
                    down = Acknowledge(attempt="a.1", data_bytes=number)
                    pair.gateway.acknowledge(pair.key, down)
                sent_down.append(down)
                number += 1
            await asyncio.sleep(0)

    talking = asyncio.create_task(talk())
    for round_number in range(8):
        aim = len(sent_frames) + 300
        while len(sent_frames) < aim:
            await asyncio.sleep(0)
        await pair.node.renew(installation.credential(pair.signing_key, 1000 + round_number))
    done.set()
    await talking
    assert len(sent_frames) > 2000
    await pair.heard_gateway.until(lambda: len(pair.heard_gateway.frames) >= len(sent_frames))
    await pair.heard_node.until(lambda: len(pair.heard_node.messages) >= len(sent_down))
    assert [frame.number for _, frame in pair.heard_gateway.frames] == sent_frames
    assert pair.heard_node.messages == sent_down
    assert pair.heard_node.connections == [True]


async def test_a_gateway_renews_by_itself_and_loses_nothing(
    installation: NatsInstallation, pair: Pair
) -> None:
    gateway_id = GatewayId("gw_short")
    heard = GatewayRecorder()
    gateway = installation.gateway(gateway_id, credential_s=4.0)
    await gateway.start(heard)
    first = _credential_of(gateway)
    number = 0
    async with asyncio.timeout(10):
        while _credential_of(gateway) == first or number < 1000:
            pair.node.send_frames(gateway_id, [Frame(attempt="a.1", number=number, events=[])])
            number += 1
            await asyncio.sleep(0.001)
    await heard.until(lambda: len(heard.frames) >= number)
    assert [frame.number for _, frame in heard.frames] == list(range(number))
    assert heard.connections == [True]
    await gateway.close()


def _credential_of(gateway: NatsGatewayBus) -> str:
    link = gateway._links.data
    assert isinstance(link, NatsClient)
    assert link._current is not None
    return link._current.credential


async def test_a_lame_duck_is_left_before_it_dies(tmp_path: Path) -> None:
    """Two servers that do not know each other stand for two of a cluster: only the move is looked at."""
    async with AsyncExitStack() as stack:
        first = NatsInstallation(tmp_path)
        await first.server.start()
        stack.push_async_callback(first.server.stop)
        second = NatsInstallation(tmp_path / "second")
        second.authority = first.authority
        files, _ = server_certificate(tmp_path, "bus", first.ca, LOCAL_NAMES, first.clock)
        settings = NatsServerSettings(
            home=second.home,
            port=second.settings.port,
            tls=TlsFiles(files.certificate, files.key, files.ca),
        )
        other = NatsServer(settings, first.authority)
        await other.start()
        stack.push_async_callback(other.stop)
        key = first.new_key()
        login = Login(lambda: first.credential(key), key.sign)
        servers = first.servers_at([first.server.url, other.url])
        client = NatsClient(servers, login, name="wanderer", randomness=lambda: 0.0)
        heard = LinkRecorder()
        await client.start(heard, 5.0)
        stack.push_async_callback(client.close)
        before = client._current
        assert before is not None
        before.on_info(b'{"ldm": true}')  # what a server sends before it stops
        async with asyncio.timeout(5):
            while client._current is before:
                await asyncio.sleep(0.01)
        assert client._current is not None
        assert client._current.server != before.server
        assert heard.connections == [True]
