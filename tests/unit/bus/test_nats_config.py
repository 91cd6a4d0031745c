"""Addresses, configuration and the search for the program: no server is started here."""

from pathlib import Path

import pytest

from panal.bus.connector import Server, Servers
from panal.bus.credentials import Authority, Seeds
from panal.bus.nats_config import NatsServerSettings, TlsFiles, config_text
from panal.bus.nats_server import NatsServer, find_binary
from panal.core.clock import ManualClock
from panal.core.errors import SettingsError


def counted(size: int) -> bytes:
    return bytes(range(size))


@pytest.fixture
def authority() -> Authority:
    return Authority(Seeds.create(counted), {}, ManualClock())


def test_addresses_are_read() -> None:
    assert Server.parse("tls://bus.example:4333") == Server("bus.example", 4333)
    assert Server.parse("nats://127.0.0.1") == Server("127.0.0.1", 4222)
    assert Server.parse("tls://[::1]:4222") == Server("::1", 4222)


@pytest.mark.parametrize(
    "url", ["", "bus:4222", "http://bus:4222", "tls://", "tls://bus:99999", "tls://bus:0x"]
)
def test_an_address_that_cannot_be_used_is_named(url: str) -> None:
    with pytest.raises(SettingsError, match="tls://host:port"):
        Server.parse(url)


def test_no_address_and_no_certificate_stop_the_start() -> None:
    with pytest.raises(SettingsError):
        Servers.at([])
    with pytest.raises(SettingsError):
        Servers.at(["tls://bus:1"], "-----BEGIN CERTIFICATE-----\nnothing\n")


def test_the_configuration_holds_no_seed_and_opens_nothing_but_clients(tmp_path: Path) -> None:
    seeds = Seeds.create(counted)
    authority = Authority(seeds, {}, ManualClock())
    tls = TlsFiles(tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "ca.pem")
    text = config_text(NatsServerSettings(home=tmp_path, tls=tls), authority)
    for name in ("operator", "system", "account", "node", "gateway", "controller"):
        assert getattr(seeds, name) not in text
    assert "handshake_first: true" in text
    for word in (
        "http",
        "websocket",
        "mqtt",
        "leafnodes",
        "cluster",
        "gateway {",
        "no_auth_user",
        "jetstream",
    ):
        assert word not in text


def test_a_path_with_quotes_stays_one_value(authority: Authority, tmp_path: Path) -> None:
    text = config_text(NatsServerSettings(home=tmp_path / 'a "b" \\c'), authority)
    assert r"a \"b\" \\c/nats/server.log" in text


def test_the_packages_program_is_found() -> None:
    assert find_binary(None).name.startswith("nats-server")


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nowhere"):
        find_binary(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "nats://127.0.0.1:9"), ("0.0.0.0", "nats://127.0.0.1:9"), ("::", "nats://[::1]:9")],
)
def test_the_address_for_this_machine(authority: Authority, tmp_path: Path, host: str, url: str) -> None:
    assert NatsServer(NatsServerSettings(home=tmp_path, host=host, port=9), authority).url == url
