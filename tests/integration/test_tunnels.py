"""The bus and HTTPS through a real proxy on loopback, to names that only the proxy knows."""

import asyncio
import http.client
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from panal.bus.connector import Servers
from panal.bus.credentials import Login
from panal.bus.nats_client import NatsClient
from panal.bus.tunnel import https_connection
from panal.core.clock import SystemClock
from panal.core.errors import BusError, SettingsError
from panal.core.proxies import STRAIGHT, Proxies, proxies_of
from panal.identity.certificates import create_or_load_ca, server_certificate
from tests.support.connect_proxy import ConnectProxy, connect_proxy
from tests.support.nats_installation import NatsInstallation
from tests.support.recorders import LinkRecorder

NAME = "gpu.panal.test"
LOGIN = "Basic dXNlcjpnZWhlaW0="  # user:geheim
HANG_S_MAX = 10.0


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[NatsInstallation]:
    """A bus whose certificate is for the name that only the proxy knows."""
    made = NatsInstallation(tmp_path)
    server_certificate(tmp_path, "bus", made.ca, ("127.0.0.1", NAME), SystemClock())
    await made.server.start()
    try:
        yield made
    finally:
        await made.server.stop()


def through(proxy: ConnectProxy, login: str = "", **environment: str) -> Proxies:
    return proxies_of(proxy.url.replace("//", f"//{login}"), (), environment)


def client_of(bus: NatsInstallation, proxies: Proxies, host: str = NAME, ca_pem: str = "") -> NatsClient:
    key = bus.new_key()
    login = Login(lambda: bus.credential(key), key.sign)
    servers = Servers.at([f"tls://{host}:{bus.settings.port}"], ca_pem or bus.ca.pem, proxies)
    return NatsClient(servers, login, name="behind", randomness=lambda: 0.5)


async def failure(client: NatsClient, timeout_s: float = 1.5) -> str:
    with pytest.raises(BusError) as told:
        await client.start(LinkRecorder(), timeout_s)
    return told.value.message


async def test_the_bus_is_reached_through_the_proxy_only(bus: NatsInstallation) -> None:
    with connect_proxy(NAME, login=LOGIN) as proxy:
        client = client_of(bus, through(proxy, "user:geheim@"))
        await client.start(LinkRecorder(), HANG_S_MAX)
        await client.flush(HANG_S_MAX)
        assert proxy.asked == [f"{NAME}:{bus.settings.port}"]
        assert proxy.opened == 1
        await client.close()
        assert "cannot be reached" in await failure(client_of(bus, STRAIGHT))
        assert proxy.opened == 1


async def test_a_lost_tunnel_is_dug_again(bus: NatsInstallation) -> None:
    with connect_proxy(NAME) as proxy:
        client = client_of(bus, through(proxy))
        heard = LinkRecorder()
        await client.start(heard, HANG_S_MAX)
        bus.kill_server()
        await heard.until(lambda: heard.connections == [True, False])
        await bus.restart_server()
        await heard.until(lambda: heard.connections == [True, False, True])
        assert proxy.opened >= 2
        await client.close()


async def test_another_ca_behind_the_proxy_is_refused(bus: NatsInstallation, tmp_path: Path) -> None:
    other = create_or_load_ca(tmp_path / "other", SystemClock())
    with connect_proxy(NAME) as proxy:
        client = client_of(bus, through(proxy), ca_pem=other.pem)
        assert "certificate" in (await failure(client)).lower()
        assert proxy.opened >= 1, "it was the certificate, not the way"


async def test_a_name_that_the_certificate_does_not_hold_is_refused(bus: NatsInstallation) -> None:
    with connect_proxy("other.panal.test") as proxy:
        client = client_of(bus, through(proxy), host="other.panal.test")
        assert "certificate" in (await failure(client)).lower()


@pytest.mark.parametrize(
    ("login", "hosts", "answers", "words"),
    [
        (LOGIN, (NAME,), None, "asks for a user and a password (407)"),
        ("", (), None, "does not let this machine reach"),
        ("", (), b"HTTP/1.1 503 Busy\r\n\r\n", "answered 503 Busy"),
        ("", (), b"220 mail.example.com ESMTP\r\n", "is no HTTP proxy"),
        ("", (), b"HTTP/1.1 200", "hung up"),
    ],
)
async def test_a_proxy_that_will_not_is_told_in_one_sentence_on_the_bus_and_by_https(
    bus: NatsInstallation, login: str, hosts: tuple[str, ...], answers: bytes | None, words: str
) -> None:
    with connect_proxy(*hosts, login=login, answers=answers) as proxy:
        assert words in await failure(client_of(bus, through(proxy)))
        with pytest.raises(BusError) as told:
            await asyncio.to_thread(ask, NAME, bus, through(proxy))
        assert words in told.value.message
        assert f"127.0.0.1:{proxy.port}" in told.value.message


async def test_a_wrong_password_is_told_without_it(bus: NatsInstallation) -> None:
    with connect_proxy(NAME, login=LOGIN) as proxy:
        words = await failure(client_of(bus, through(proxy, "user:falsch@")))
    assert "does not accept its user and password" in words
    assert "falsch" not in words


async def test_a_silent_proxy_is_given_up_in_time(bus: NatsInstallation) -> None:
    with connect_proxy(answers=b"") as proxy:
        begun_s = time.monotonic()
        with pytest.raises(BusError, match=r"did not answer within 0\.5 s"):
            await asyncio.to_thread(ask, NAME, bus, through(proxy), 0.5)
        await failure(client_of(bus, through(proxy)), 0.5)
        assert time.monotonic() - begun_s < HANG_S_MAX


async def test_a_proxy_that_is_not_there_is_told(bus: NatsInstallation) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        proxies = proxies_of(f"http://127.0.0.1:{taken.getsockname()[1]}", (), {})
        assert "cannot be reached" in await failure(client_of(bus, proxies))
        with pytest.raises(BusError, match=r"The proxy .* cannot be reached"):
            await asyncio.to_thread(ask, NAME, bus, proxies)


@pytest.mark.parametrize(
    "ways",
    [
        lambda proxy: through(proxy, NO_PROXY="127.0.0.0/8"),
        lambda proxy: through(proxy),
        lambda proxy: proxies_of("", (), {"HTTPS_PROXY": proxy.url}),
    ],
    ids=["spared", "loopback", "loopback by variable"],
)
async def test_loopback_never_goes_through_the_proxy(
    bus: NatsInstallation, ways: Callable[[ConnectProxy], Proxies]
) -> None:
    with connect_proxy(NAME, "127.0.0.1") as proxy:
        client = client_of(bus, ways(proxy), host="127.0.0.1")
        await client.start(LinkRecorder(), HANG_S_MAX)
        await client.close()
        assert proxy.asked == []


async def test_a_spared_name_is_dialled_straight(bus: NatsInstallation) -> None:
    with connect_proxy(NAME) as proxy:
        words = await failure(client_of(bus, through(proxy, NO_PROXY="panal.test")), 0.5)
        assert "cannot be reached" in words
        assert proxy.asked == []


async def test_a_proxy_of_an_unknown_kind_is_a_fault_of_the_settings(bus: NatsInstallation) -> None:
    proxies = proxies_of("", (), {"HTTPS_PROXY": "socks5://user:geheim@127.0.0.1:1"})
    words = await failure(client_of(bus, proxies), 0.5)
    assert "HTTPS_PROXY" in words and "geheim" not in words
    with pytest.raises(SettingsError, match="HTTPS_PROXY"):
        ask(NAME, bus, proxies)


def ask(host: str, bus: NatsInstallation, proxies: Proxies, timeout_s: float = 3.0) -> None:
    """The beginning of HTTPS; the bus's port does as well as any, since the proxy refuses before."""
    context = ssl.create_default_context(cadata=bus.ca.pem)
    connection = https_connection(host, bus.settings.port, timeout_s, context, proxies)
    assert isinstance(connection, http.client.HTTPSConnection)
    try:
        connection.request("GET", "/")
    finally:
        connection.close()
