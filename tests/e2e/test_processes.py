"""Two gateway processes behind one port: spread, limits, keys, metrics, one killed, the leader killed."""

import http.client
import os
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from panal.bus.credentials import expires_utc_s
from panal.cli.api_client import Api
from panal.node.enrolled import load_enrolled
from tests.support.installation import (
    Installation,
    Program,
    free_ports,
    processes_naming,
    short_folder,
    until,
)
from tests.support.members import Member, Members
from tests.support.processes import (
    Clients,
    Line,
    holder_of,
    line_to,
    metric,
    processes,
    until_all_run,
)
from tests.support.served import Served

UP = ["--engine", "echo", "--processes", "2"]
IN_FORCE_S_MAX = 2.0
"""The promise: what is changed through one process holds in all of them after this time."""
BACK_S_MAX = 20.0


@pytest.fixture(autouse=True)
def two_run(served: Served) -> None:
    until_all_run(served, 2)
    served.until_idle()


@pytest.fixture
def lines(served: Served) -> Iterator[list[Line]]:
    """One connection to each process, the first to the one that does not lead."""
    made = [line_to(served, each) for each in sorted(processes(served), key=lambda each: each.leads)]
    yield made
    for line in made:
        line.close()


def test_connections_are_spread_over_both_processes(served: Served) -> None:
    among = processes(served)
    made = [Line(served) for _ in range(60)]
    assert {line.ask().status for line in made} == {200}
    shares = Counter(holder_of(line, among) for line in made)
    assert min(shares[each.pid] for each in among) >= 10, shares
    for line in made:
        line.close()


def test_any_process_shows_the_sums_of_both(served: Served, lines: list[Line]) -> None:
    before = metric(served, "panal_requests_total", outcome="ok")
    for line in lines:
        for _ in range(5):
            assert line.ask().status == 200
    until(
        lambda: metric(served, "panal_requests_total", outcome="ok") == before + 10,
        5.0,
        "both are in the sum",
    )
    for line in lines:
        text = line.call("GET", "/metrics", admin=True).body.decode()
        assert "\npanal_processes 2.0\n" in text and "\npanal_leader 1.0\n" in text
        assert text.count("# TYPE panal_requests_total ") == 1
    assert metric(served, "panal_request_seconds_count") == metric(served, "panal_requests_total")


def test_p32_a_key_revoked_through_one_process_is_refused_by_both(served: Served, lines: list[Line]) -> None:
    for by in lines:
        made = by.call("POST", "/api/v1/keys", {"name": "short-lived"}, admin=True).json
        until_all_say(lines, made["secret"], 200)
        done = by.call("DELETE", f"/api/v1/keys/{made['view']['id']}", admin=True)
        assert done.status < 300, done.body
        until_all_say(lines, made["secret"], 401)


def until_all_say(lines: list[Line], secret: str, status: int) -> None:
    for line in lines:
        until(lambda line=line: line.ask(key=secret).status == status, IN_FORCE_S_MAX, f"{status} on each")


def test_p38_parallel_requests_over_both_processes_never_pass_a_limit(
    served: Served, lines: list[Line]
) -> None:
    """Ten requests a day, asked for by 24 on both at once: all ten are had, and not one more."""
    made = served.admin().post("/api/v1/keys", {"name": "limited"})
    served.admin().call("PUT", f"/api/v1/limits/{made['view']['id']}", {"requests_per_day": 10})
    statuses: Counter[int] = Counter()

    def ask(line: Line) -> bool:
        """Whether the answer was given under the limit."""
        reply = line.ask(key=made["secret"])
        limited = "x-ratelimit-limit-requests" in reply.headers
        statuses[reply.status] += limited
        return limited

    for line in lines:
        until(lambda line=line: ask(line), IN_FORCE_S_MAX, "the limit is in force")
    with ThreadPoolExecutor(8) as pool:
        for each in range(8):
            pool.submit(ask_all, ask, served, each % 2)
    assert statuses[200] <= 10 and statuses[429] >= 14, statuses
    until(lambda: [ask(line) for line in lines] and statuses[200] >= 10, 15.0, "all ten are had")
    for line in lines * 3:
        ask(line)
    assert set(statuses) == {200, 429} and statuses[200] == 10


def ask_all(ask: Callable[[Line], bool], served: Served, place: int) -> None:
    line = line_to(served, processes(served)[place])
    for _ in range(3):
        ask(line)
    line.close()


def test_one_killed_under_load_hurts_only_its_own_clients_and_comes_back(served: Served) -> None:
    living = processes(served)
    victim, other = living[1], living[0]
    survivor, doomed = line_to(served, other), line_to(served, victim)
    clients = Clients(served, 6)
    try:
        until(lambda: clients.right > 60, 20.0, "all ask")
        victim.kill()
        with pytest.raises((OSError, http.client.HTTPException)):
            doomed.ask()
        for _ in range(40):
            assert survivor.ask().status == 200
        until_all_run(served, 2, other_than=victim.pid)
        after = clients.right
        until(lambda: clients.right > after + 60, 20.0, "all are served again")
    finally:
        clients.stop()
        survivor.close()
        doomed.close()
    assert [status for told in clients.told for status in told.refused] == []
    # Once by the kill; once more who came back before the kernel had closed the dead one's listening socket.
    assert max(told.cut for told in clients.told) <= 2
    assert "is started again" in until(lambda: notices(served), 5.0, "the end is told")


def notices(served: Served) -> str:
    program = served.installation.program
    assert program is not None
    return program.output if "is started again" in program.output else ""


def test_ledger_metrics_and_clients_agree_over_both_with_one_killed(served: Served) -> None:
    """What was asked before the kill has been written for a second, so that the sums must be exact."""
    totals = lambda: served.admin().get("/api/v1/usage/totals")  # noqa: E731
    settled(served)
    before, counted = totals(), tokens_counted(served)
    clients = Clients(served, 4)
    until(lambda: clients.right > 100, 30.0, "both were asked")
    clients.stop()
    shown = sum(told.tokens for told in clients.told)
    assert tokens_in(settled(served)) - tokens_in(before) == shown
    until(lambda: tokens_counted(served) - counted == shown, 5.0, "metrics have it all")
    victim = processes(served)[0]
    victim.kill()
    until_all_run(served, 2, other_than=victim.pid)
    assert tokens_counted(served) - counted == shown
    again = Clients(served, 4)
    until(lambda: again.right > 40, 30.0, "both were asked again")
    again.stop()
    shown += sum(told.tokens for told in again.told)
    assert tokens_in(settled(served)) - tokens_in(before) == shown
    until(lambda: tokens_counted(served) - counted == shown, 5.0, "metrics have it all")


def tokens_counted(served: Served) -> float:
    return metric(served, "panal_tokens_total")


def tokens_in(totals: dict[str, Any]) -> int:
    return int(totals["prompt_tokens"]) + int(totals["completion_tokens"])


def settled(served: Served) -> dict[str, Any]:
    """Totals of usage once no spool holds anything."""
    spool = served.installation.home / "spool"
    until(lambda: not list(spool.glob("**/*.jsonl")), 15.0, "the spools are drained")
    found: dict[str, Any] = served.admin().get("/api/v1/usage/totals")
    return found


def test_no_counter_goes_back_while_a_process_is_killed(served: Served) -> None:
    clients = Clients(served, 3)
    seen = [0.0]
    try:
        until(lambda: clients.right > 30, 20.0, "all ask")
        victim = processes(served)[1]
        victim.kill()

        def back() -> bool:
            try:
                seen.append(metric(served, "panal_requests_total"))
            except (OSError, http.client.HTTPException):
                return False
            return len(seen) > 60 and len(processes(served)) == 2

        until(back, BACK_S_MAX, "it is back")
    finally:
        clients.stop()
    assert seen == sorted(seen)


def test_another_leads_when_the_leader_is_killed_and_nodes_still_join_and_obey(served: Served) -> None:
    leader = next(each for each in processes(served) if each.leads)
    with short_folder() as folder:
        members = Members(served.installation, folder)
        token = members.token()
        leader.kill()
        try:
            member = members.join(token)
            members.until_serving(member)
            living = until_all_run(served, 2, other_than=leader.pid)
            follower = line_to(served, next(each for each in living if not each.leads))
            done = follower.call("POST", f"/api/v1/nodes/{member.node}/cordon", {"reason": "x"}, admin=True)
            assert done.status == 200, done.body
            until(
                lambda: members.live()[member.node]["reason"] == "x",
                IN_FORCE_S_MAX + 1.0,
                "the node was told",
            )
            done = follower.call("POST", f"/api/v1/nodes/{member.node}/revoke", {"reason": "y"}, admin=True)
            assert done.status == 200, done.body
            until(lambda: member.program.process.poll() is not None, 10.0, "the revoked agent has ended")
            follower.close()
        finally:
            members.close()


def credential_end_utc_s(member: Member) -> float:
    enrolled = load_enrolled(member.agent_home)
    assert enrolled is not None
    return expires_utc_s(enrolled.credential)


def test_credentials_are_renewed_by_the_next_leader() -> None:
    """Credentials live 10 s here; the leader is killed, and the node stays for two lives more."""
    with short_folder() as folder:
        installation = Installation(
            folder,
            arguments=["--no-node", "--processes", "2"],
            environment={"PANAL_NODE__CREDENTIAL_S": "10"},
        ).start()
        served = Served(installation)
        members = Members(installation, folder)
        try:
            member = members.join()
            members.until_serving(member)
            leader = next(each for each in until_all_run(served, 2) if each.leads)
            leader.kill()
            until_all_run(served, 2, other_than=leader.pid)
            after_utc_s = time.time() + 20.0
            until(lambda: credential_end_utc_s(member) > after_utc_s, 40.0, "it was renewed twice more")
            members.until_serving(member)
        finally:
            members.close()
            served.stop()
        assert processes_naming(str(installation.home)) == []


def test_a_host_with_gateways_only_runs_as_many_and_ends_them_in_order() -> None:
    """``panal gateway --processes 2`` with a home of its own beside an installation that has the bus."""
    with short_folder() as folder:
        first = Installation(folder, arguments=["--no-node"]).start()
        home = folder / "other"
        shutil.copytree(first.home, home, ignore=shutil.ignore_patterns("panal.db*", "spool", "logs"))
        http_port, https_port = free_ports(2)
        environment = first.environment | {
            "PANAL_GATEWAY__HTTP_PORT": str(http_port),
            "PANAL_GATEWAY__HTTPS_PORT": str(https_port),
            "PANAL_GATEWAY__STORE_URL": f"sqlite:///{first.home / 'panal.db'}",
        }
        program = Program(["gateway", "--processes", "2", "--home", str(home)], environment)
        api = Api(f"http://127.0.0.1:{http_port}", first.admin_key)
        try:
            until(lambda: "2 gateway processes run" in program.output, 40.0, "both are ready")
            both = api.get("/api/v1/processes")["processes"]
            assert [(each["number"], each["lives"], each["leads"]) for each in both] == [
                (1, True, False),
                (2, True, False),
            ]
            os.kill(both[1]["pid"], signal.SIGKILL)
            until(lambda: "runs again" in program.output, 20.0, "it came back")
            assert program.stop() == 0, program.output
            assert processes_naming(str(home)) == []
        finally:
            program.kill()
            first.stop()


def test_a_port_in_use_is_refused_before_anything_is_made() -> None:
    with short_folder() as folder, socket.socket() as theirs:
        installation = Installation(folder, arguments=["--processes", "2", "--no-node"])
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        theirs.bind(("127.0.0.1", installation.http_port))
        theirs.listen()
        program = Program(installation.arguments, installation.environment)
        try:
            assert program.wait(20.0) != 0
        finally:
            program.kill()
        assert f"Cannot listen on 127.0.0.1 port {installation.http_port}" in program.output
        assert not (installation.home / "panal.db").exists() and not (installation.home / "ca").exists()
