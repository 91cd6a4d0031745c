"""``panal doctor``: what the facts mean, and that looking works with nothing there and changes nothing."""

import datetime
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from panal.cli.doctor import machine
from panal.cli.doctor.facts import (
    CertificateFact,
    Disk,
    Facts,
    Library,
    NodeFact,
    Port,
    ProcessesFact,
    StoreFact,
)
from panal.cli.doctor.judgement import Finding, judge
from panal.cli.doctor.probes import probe
from panal.cli.doctor.versions import fits, numbers, requirement
from panal.cli.home import Home
from panal.core.clock import ManualClock
from panal.identity.certificates import create_or_load_ca
from tests.support.gpus import gpu

DAY_S = 86400.0
NODE = NodeFact("desk", "desktop", agent_runs=True, paused=False, credential_left_s=1800)
GOOD = Facts(
    libraries=(Library("msgspec", ">=0.23,<1", "0.23.1"),),
    nats_version=(2, 15, 1),
    gateway_url="http://127.0.0.1:7080",
    clock_ahead_s=0.1,
    ports=(Port("gateway.http_port", 7080, "free"), Port("bus.nats_port", 7422, "ours")),
    certificates=(CertificateFact("ca/gateway.pem", 80 * DAY_S),),
    resolved_names=("gpu.example.com",),
    engine="echo",
    disks=(Disk("home", "home", 10 * 1024**3),),
    secrets=4,
    store=StoreFact("sqlite", "0001", "0001"),
    bus_problem="",
    node=NODE,
    processes=ProcessesFact(2, (1, 2)),
    gpus=(gpu(),),
)


def others(facts: Facts) -> list[Finding]:
    return [each for each in judge(facts) if each.level != "ok"]


def test_a_healthy_machine_has_nothing_to_do() -> None:
    assert others(GOOD) == []
    assert len(judge(GOOD)) >= 15


def test_an_empty_machine_has_nothing_to_do_either() -> None:
    facts = Facts(libraries=GOOD.libraries, nats_version=(2, 14, 0))
    assert others(facts) == []
    assert any("no GPU found" in each.what for each in judge(facts))


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({"settings_faults": ("'gateway.htp_port' is unknown",)}, "bad", "htp_port"),
        ({"processes": ProcessesFact(3, (1, 3), (2,))}, "warn", "2 run, number 2 has ended"),
        ({"processes": ProcessesFact(3, (1,), shared=False)}, "warn", "one runs"),
        ({"python": (3, 10)}, "bad", "3.10"),
        ({"libraries": (Library("msgspec", ">=0.23,<1", "1.0"),)}, "bad", "msgspec is 1.0"),
        ({"libraries": (Library("msgspec", ">=0.23,<1", ""),)}, "bad", "not installed"),
        ({"libraries": ()}, "warn", "not installed as a package"),
        ({"nats_version": (2, 12, 6)}, "bad", "2.12.6"),
        ({"nats_version": (2, 13, 9)}, "bad", "2.13.9"),
        ({"nats_version": (), "nats_problem": "no nats-server"}, "bad", "no nats-server"),
        ({"clock_ahead_s": -3.0}, "warn", "3.0 s behind"),
        ({"clock_ahead_s": 400.0}, "bad", "400.0 s ahead"),
        ({"clock_jump_s": -2.0}, "warn", "jumped"),
        ({"ports": (Port("bus.nats_port", 7422, "taken"),)}, "bad", "7422"),
        ({"certificates": (CertificateFact("c.pem", 3 * DAY_S),)}, "warn", "3 days"),
        ({"certificates": (CertificateFact("c.pem", -1.0),)}, "bad", "expired"),
        ({"certificates": (CertificateFact("c.pem", problem="is damaged"),)}, "bad", "c.pem is damaged"),
        ({"unresolved_names": ("gpu.example.com",)}, "bad", "gpu.example.com"),
        ({"proxy_variables": ("http_proxy",)}, "warn", "http_proxy"),
        ({"engine_problem": "the model is not in the cache"}, "warn", "cache"),
        ({"disks": (Disk("home", "home", 1024**3),)}, "warn", "1.0 GiB"),
        ({"disks": (Disk("home", "home", 1024**2),)}, "bad", "0.0 GiB"),
        ({"readable_secrets": ("home/admin.json",)}, "bad", "admin.json"),
        ({"store": StoreFact("sqlite", problem="cannot be used")}, "bad", "cannot be used"),
        ({"store": StoreFact("sqlite", "9999", "0002", known=False)}, "bad", "newer panal"),
        ({"store": StoreFact("sqlite", "0001", "0002")}, "warn", "0002"),
        ({"bus_problem": "the bus is away"}, "warn", "the bus is away"),
        ({"gateway_problem": "it does not answer"}, "warn", "does not answer"),
        ({"gpu_problem": "NVML fails: Unknown Error"}, "bad", "NVML fails"),
        ({"gpus": (gpu(lost=True),)}, "bad", "is lost"),
        ({"gpus": (gpu(used_gib=None, problem="does not tell its memory"),)}, "warn", "does not tell"),
        ({"gpus": (gpu(throttle=frozenset({"hw_thermal"})),)}, "warn", "hot"),
        ({"node": replace(NODE, agent_runs=False)}, "warn", "agent does not run"),
        ({"node": replace(NODE, paused=True)}, "warn", "paused"),
        ({"node": replace(NODE, sensor_problem="no DISPLAY")}, "bad", "no DISPLAY"),
        ({"node": replace(NODE, credential_left_s=0)}, "bad", "credential has expired"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_fault_is_one_finding_with_what_to_do(
    change: dict[str, object], level: str, words: str
) -> None:
    found = others(replace(GOOD, **change))  # type: ignore[arg-type]
    assert [each.level for each in found] == [level]
    assert words in found[0].what
    assert found[0].todo or "as a package" in found[0].what


@pytest.mark.parametrize("version", [(2, 11, 16), (2, 12, 7), (2, 14, 0), (2, 15, 1), (3, 0)])
def test_servers_without_known_faults(version: tuple[int, ...]) -> None:
    assert others(replace(GOOD, nats_version=version)) == []


def test_versions_are_compared_number_by_number() -> None:
    assert numbers("2.15.1rc2") == (2, 15, 1)
    assert requirement("sqlalchemy[asyncio]<2.2,>=2.1.9") == ("sqlalchemy", "<2.2,>=2.1.9", True)
    assert requirement("uvloop<1,>=0.23; sys_platform != 'win32'") == ("uvloop", "<1,>=0.23", False)
    assert fits("2.1.10", ">=2.1.9,<2.2")
    assert not fits("2.2", ">=2.1.9,<2.2")
    assert fits("1", "==1.0") and not fits("1.1", "==1.0") and fits("1.0.1", ">1") and fits("1", "<=1.0.0")


def test_a_proxy_that_spares_this_machine_is_none() -> None:
    assert machine.proxy_variables({"http_proxy": "http://p:1"}) == ("http_proxy",)
    assert machine.proxy_variables({"http_proxy": "http://p:1", "NO_PROXY": "localhost, 127.0.0.1"}) == ()
    assert machine.proxy_variables({"HTTPS_PROXY": "http://p:1", "no_proxy": "*"}) == ()
    assert machine.proxy_variables({}) == ()


def test_secrets_that_others_may_read_are_named(tmp_path: Path) -> None:
    home = Home(tmp_path)
    create_or_load_ca(tmp_path, ManualClock())
    home.admin_file.write_text("{}")
    home.admin_file.chmod(0o644)
    count, readable = machine.secrets_of(home)
    assert (count, readable) == (2, (str(home.admin_file),))


def test_certificates_are_read_and_damaged_ones_named(tmp_path: Path) -> None:
    create_or_load_ca(tmp_path, ManualClock(datetime.datetime.now(datetime.UTC).timestamp()))
    (tmp_path / "ca" / "gateway.pem").write_text("no certificate")
    authority, damaged = machine.certificates(Home(tmp_path))
    assert authority.left_s > 3600 * DAY_S and not authority.problem
    assert damaged.problem.startswith("is damaged")


async def test_looking_at_nothing_changes_nothing(tmp_path: Path) -> None:
    facts = await probe(Home(tmp_path / "none"), None, {"PANAL_CACHE": str(tmp_path / "cache")})
    assert list(tmp_path.iterdir()) == []
    assert (facts.store, facts.node, facts.gateway_url, facts.bus_problem) == (None, None, "", None)
    assert facts.engine_problem and facts.nats_version >= (2, 14)


async def test_a_port_that_another_program_has_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        number = other.getsockname()[1]
        facts = await probe(Home(tmp_path), None, {"PANAL_GATEWAY__HTTP_PORT": str(number)})
    assert facts.ports[0] == Port("gateway.http_port", number, "taken")
    wrong = await probe(Home(tmp_path), None, {"PANAL_GATEWAY__HTTP_PORT": "many"})
    assert "http_port" in wrong.settings_faults[0]
