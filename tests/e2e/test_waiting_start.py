"""A host that boots before its database or its bus: the start waits, says so, and goes on by itself."""

import asyncio
import contextlib
import http.client
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from panal.bus.nats_server import find_binary
from tests.support.asking import say, wire
from tests.support.databases import fresh_url
from tests.support.ends import sentence_of
from tests.support.gate import Gate, through
from tests.support.installation import (
    Installation,
    Program,
    free_ports,
    processes_naming,
    short_folder,
    until,
)
from tests.support.served import Served


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


def asked(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers; status 0 when nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, json.loads(answer.read()), headers
    except OSError:
        return 0, {}, {}
    finally:
        connection.close()


def alive_but_not_ready(port: int, code: str) -> None:
    """The promise to probes, load balancers and clients."""
    until(lambda: asked(port, "/health")[0] == 200, 30.0, "it says that it lives")
    status, health, _headers = asked(port, "/health")
    assert (status, health["status"]) == (200, "waiting") and health["message"]
    for method, path in (("GET", "/ready"), ("POST", "/v1/chat/completions"), ("GET", "/api/v1/fleet")):
        status, body, headers = asked(port, path, method)
        assert (status, body["error"]["code"]) == (503, code), (path, body)
        assert int(headers["retry-after"]) >= 1 and headers["x-request-id"]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty PostgreSQL database."""
    with asyncio.Runner() as runner:
        context = fresh_url("postgresql", tmp_path, migrated=False)
        yield runner.run(context.__aenter__())
        runner.run(context.__aexit__(None, None, None))


@pytest.mark.postgres
@pytest.mark.timeout(180)
def test_up_waits_for_its_database_and_serves_when_that_is_there(folder: Path, database: str) -> None:
    (port,) = free_ports(1)
    gate = Gate(database, port)
    environment = {"PANAL_GATEWAY__STORE_URL": through(database, port)}
    installation = Installation(folder, arguments=["--engine", "echo"], environment=environment)
    program = installation.program = Program(installation.arguments, installation.environment)
    served = Served(installation)
    try:
        until(lambda: "waits until the store is there" in program.output, 30.0, "it says so on the screen")
        alive_but_not_ready(installation.http_port, "store_unavailable")
        before = psutil_pid(installation)
        gate.open()
        installation.ready = until(installation._said_ready, 60.0, "it is ready")
        assert psutil_pid(installation) == before, "the process that waited is the one that serves"
        assert program.output.count("waits until") == 1 and "The gateway is ready." in program.output
        assert asked(installation.http_port, "/ready")[0] == 200
        assert served.call("POST", "/v1/chat/completions", wire(say("x"))).status == 200
    finally:
        served.stop()
        gate.close()


def psutil_pid(installation: Installation) -> int:
    """The gateway's process."""
    found = [
        each
        for each in processes_naming(str(installation.home))
        if "gateway" in each.cmdline() and "--watch-parent" in each.cmdline()
    ]
    assert len(found) == 1
    return found[0].pid


@pytest.mark.timeout(180)
def test_a_host_with_gateways_waits_for_its_bus_and_can_be_ended_meanwhile(folder: Path) -> None:
    installation = Installation(folder, arguments=["--no-node"]).start()
    installation.stop()
    arguments = ["gateway", "--processes", "2", "--home", str(installation.home)]
    program = Program(arguments, installation.environment)
    try:
        until(lambda: "waits until the bus is there" in program.output, 30.0, "it says so on the screen")
        alive_but_not_ready(installation.http_port, "bus_unavailable")
        assert program.stop(20.0) == 0, program.output
        assert processes_naming(str(installation.home)) == []
        program = Program(arguments, installation.environment)
        until(lambda: "waits until the bus is there" in program.output, 30.0, "it waits again")
        with bus(installation.home):
            until(lambda: "2 gateway processes run" in program.output, 60.0, "both are ready")
            found = installation.admin().get("/api/v1/processes")["processes"]
            assert [each["lives"] for each in found] == [True, True]
        assert program.stop() == 0, program.output
    finally:
        program.kill()


@contextlib.contextmanager
def bus(home: Path) -> Iterator[None]:
    """The installation's own nats-server, as ``up`` configured it."""
    running = subprocess.Popen([find_binary(None), "--config", str(home / "nats" / "server.conf")])
    try:
        yield
    finally:
        running.terminate()
        running.wait()


@pytest.mark.timeout(120)
def test_a_wrong_address_of_the_database_ends_the_start_with_a_sentence(folder: Path) -> None:
    for url, words in (("mysql://x/y", "must begin with"), ("postgresql://h:port/x", "gateway.store_url")):
        installation = Installation(folder, environment={"PANAL_GATEWAY__STORE_URL": url})
        assert words in sentence_of(["up", "--no-node"], installation.environment)
    rubbish = folder / "rubbish.db"
    rubbish.write_bytes(b"no database at all" * 1000)
    installation = Installation(folder, environment={"PANAL_GATEWAY__STORE_URL": f"sqlite:///{rubbish}"})
    assert "SQLITE_NOTADB" in sentence_of(["up", "--no-node"], installation.environment)


@pytest.mark.postgres
@pytest.mark.timeout(120)
def test_a_database_that_does_not_exist_ends_the_start_with_a_sentence(folder: Path, database: str) -> None:
    wrong = database.replace("/panal_", "/no_such_panal_")
    installation = Installation(folder, environment={"PANAL_GATEWAY__STORE_URL": wrong})
    assert "InvalidCatalogNameError" in sentence_of(["up", "--no-node"], installation.environment)


@pytest.mark.timeout(120)
def test_a_bus_of_another_installation_ends_the_start_with_a_sentence(folder: Path) -> None:
    other = Installation(folder / "other", arguments=["--no-node"]).start()
    ours = Installation(folder / "ours")
    environment = ours.environment | {
        "PANAL_BUS__NATS_PORT": other.environment["PANAL_BUS__NATS_PORT"],
    }
    try:
        assert "panal host import" in sentence_of(["gateway"], environment)
    finally:
        other.stop()
