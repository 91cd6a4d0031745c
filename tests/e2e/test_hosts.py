"""Two gateway hosts, each with two processes, over one PostgreSQL and one bus: one installation."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from panal.core.errors import BusError
from tests.e2e.test_waiting_start import bus
from tests.support.databases import fresh_url
from tests.support.ends import sentence_of
from tests.support.installation import (
    Installation,
    Program,
    processes_naming,
    short_folder,
    until,
)
from tests.support.members import Members
from tests.support.processes import Clients, Line, processes
from tests.support.served import Served

IN_FORCE_S_MAX = 2.0
LEADS_S_MAX = 10.0

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]


class Host:
    """``panal gateway --processes 2`` in a folder of its own."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.served = Served(installation)

    def start(self) -> None:
        arguments = ["gateway", "--processes", "2"]
        self.installation.program = Program(arguments, self.installation.environment)

    @property
    def program(self) -> Program:
        assert self.installation.program is not None
        return self.installation.program

    def until_ready(self) -> None:
        until(lambda: "2 gateway processes run" in self.program.output, 60.0, "both are ready")

    def leads(self) -> bool:
        """Whether one of its processes does; none does while it is away."""
        with contextlib.suppress(BusError):
            return any(each.leads for each in processes(self.served))
        return False


@dataclass
class Pair:
    first: Host
    second: Host

    @property
    def both(self) -> list[Host]:
        return [self.first, self.second]

    def leader(self) -> Host:
        found = until(
            lambda: [host for host in self.both if host.leads()], LEADS_S_MAX, "one of the hosts leads"
        )
        assert len(found) == 1
        host: Host = found[0]
        return host

    def other(self, host: Host) -> Host:
        return self.second if host is self.first else self.first


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The first host's home was made by ``up``; the second has what the documented commands brought it."""
    with asyncio.Runner() as runner, short_folder() as folder:
        database = fresh_url("postgresql", tmp_path_factory.mktemp("database"), migrated=False)
        store = {"PANAL_GATEWAY__STORE_URL": runner.run(database.__aenter__())}
        try:
            first = Installation(folder / "first", arguments=["--no-node"], environment=store).start()
            first.stop()
            second = Installation(folder / "second", environment=store)
            bring_secrets(first, second, folder / "host.sealed")
            second.environment["PANAL_BUS__URLS"] = (
                f"tls://127.0.0.1:{first.environment['PANAL_BUS__NATS_PORT']}"
            )
            second.ready = first.ready | {
                "secure_endpoint": f"https://127.0.0.1:{second.environment['PANAL_GATEWAY__HTTPS_PORT']}/v1"
            }
            made = Pair(Host(first), Host(second))
            with bus(first.home):
                try:
                    for host in made.both:
                        host.start()
                        host.until_ready()
                    yield made
                finally:
                    for host in made.both:
                        host.program.stop()
            for host in made.both:
                assert processes_naming(str(host.installation.home)) == []
        finally:
            runner.run(database.__aexit__(None, None, None))


def bring_secrets(first: Installation, second: Installation, file: Path) -> None:
    code = first.run("host", "export", str(file))["code"]
    assert file.stat().st_mode & 0o077 == 0
    command = [sys.executable, "-m", "panal", "host", "import", str(file), "--json"]
    done = subprocess.run(
        command,
        env={**os.environ, **second.environment, "PANAL_HOST_CODE": code},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["home"] == str(second.home)


@pytest.fixture
def members(pair: Pair) -> Iterator[Members]:
    with short_folder() as folder:
        made = Members(pair.first.installation, folder)
        yield made
        made.close()


@pytest.fixture
def serving(pair: Pair, members: Members) -> None:
    """A node that joined through the first host and serves both."""
    member = members.join()
    for host in pair.both:
        until(lambda host=host: Members(host.installation, members.folder).serves(member), 40.0, "it serves")
    for host in pair.both:
        until(lambda host=host: answers(host), 10.0, "it is asked")


def test_one_leads_of_all_and_both_serve_the_same_keys_and_nodes(pair: Pair, serving: None) -> None:
    assert pair.first.leads() != pair.second.leads()
    for by, other in ((pair.first, pair.second), (pair.second, pair.first)):
        made = by.served.admin().post("/api/v1/keys", {"name": "of both"})
        for host in pair.both:
            until_says(host, made["secret"], 200)
        other.served.admin().delete(f"/api/v1/keys/{made['view']['id']}")
        for host in pair.both:
            until_says(host, made["secret"], 401)


def answers(host: Host) -> bool:
    with contextlib.closing(Line(host.served)) as line:
        return line.ask().status == 200


def until_says(host: Host, secret: str, status: int) -> None:
    """On every process of the host, within the promised time: several connections in a row say so."""

    def all_say() -> bool:
        lines = [Line(host.served) for _ in range(6)]
        try:
            return all(line.ask(key=secret).status == status for line in lines)
        finally:
            for line in lines:
                line.close()

    until(all_say, IN_FORCE_S_MAX + 1.0, f"{status} on the host")


def test_p38_parallel_requests_over_both_hosts_never_pass_a_limit(pair: Pair, serving: None) -> None:
    """Ten requests a day, asked for by 24 on both hosts at once: all ten are had, and not one more."""
    admin = pair.first.served.admin()
    made = admin.post("/api/v1/keys", {"name": "limited"})
    admin.call("PUT", f"/api/v1/limits/{made['view']['id']}", {"requests_per_day": 10})
    statuses: Counter[int] = Counter()

    def ask(line: Line) -> bool:
        """Whether the answer was given under the limit."""
        reply = line.ask(key=made["secret"])
        limited = "x-ratelimit-limit-requests" in reply.headers
        statuses[reply.status] += limited
        return limited

    lines = [Line(host.served) for host in pair.both for _ in range(6)]
    for line in lines:
        until(lambda line=line: ask(line), IN_FORCE_S_MAX + 1.0, "the limit is in force")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda place: ask_all(ask, pair.both[place % 2]), range(8)))
    until(lambda: [ask(line) for line in lines] and statuses[200] >= 10, 15.0, "all ten are had")
    for line in lines * 3:
        ask(line)
        assert statuses[200] <= 10
    assert set(statuses) == {200, 429} and statuses[200] == 10, statuses
    for line in lines:
        line.close()


def ask_all(ask: Callable[[Line], bool], host: Host) -> None:
    line = Line(host.served)
    for _ in range(3):
        ask(line)
    line.close()


def totals(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = host.served.admin().get("/api/v1/usage/totals")
    return found


def test_the_ledger_has_what_clients_of_both_hosts_were_shown(pair: Pair, serving: None) -> None:
    settle(pair)
    before = totals(pair.first)
    clients = [Clients(host.served, 2) for host in pair.both]
    until(lambda: all(each.right > 30 for each in clients), 30.0, "both were asked")
    for each in clients:
        each.stop()
    shown = sum(told.tokens for each in clients for told in each.told)
    settle(pair)
    after = totals(pair.second)
    assert after == totals(pair.first)
    assert tokens_in(after) - tokens_in(before) == shown


def tokens_in(found: dict[str, Any]) -> int:
    return int(found["prompt_tokens"]) + int(found["completion_tokens"])


def settle(pair: Pair) -> None:
    for host in pair.both:
        spool = host.installation.home / "spool"
        until(lambda spool=spool: not list(spool.glob("**/*.jsonl")), 15.0, "the spools are drained")


def test_a_host_killed_leaves_the_other_leading_joining_and_revoking_and_comes_back(
    pair: Pair, members: Members, serving: None
) -> None:
    leader = pair.leader()
    left = pair.other(leader)
    elsewhere = Members(left.installation, members.folder / "elsewhere")
    (member,) = members.made
    leader.program.kill()
    killed_s = time.monotonic()
    try:
        assert answers(left), "nobody else notices"
        until(left.leads, LEADS_S_MAX, "the other host leads")
        print(f"the other host led {time.monotonic() - killed_s:.1f} s after the kill")
        fresh = elsewhere.join()
        elsewhere.until_serving(fresh)
        left.served.admin().post(f"/api/v1/nodes/{member.node}/revoke", {"reason": "test"})
        until(lambda: not elsewhere.serves(member), 15.0, "the revoked node is cut off")
        leader.start()
        leader.until_ready()
        until(lambda: answers(leader), 20.0, "the host that came back serves")
        # It asks why by the address that it joined by.
        until(lambda: member.program.process.poll() is not None, 60.0, "the revoked agent has ended")
        until(lambda: revocations(leader), 10.0, "it knows what was revoked meanwhile")
        assert revocations(leader) == revocations(left)
        assert not leader.leads() and left.leads()
    finally:
        elsewhere.close()


def revocations(host: Host) -> set[str]:
    file = host.installation.home / "nats" / "authority.json"
    return set(json.loads(file.read_text())["revocations"])


def test_up_does_not_start_a_bus_beside_one_elsewhere(pair: Pair) -> None:
    environment = pair.second.installation.environment | {
        "PANAL_HOME": str(pair.second.installation.home.parent / "x")
    }
    assert "'bus.urls' names a bus elsewhere" in sentence_of(["up", "--no-node"], environment)
