"""One run: a fleet, its mishaps, its clients, and what is there afterwards."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from panal.core.errors import BusError
from panal.node.enrolled import load_enrolled, save_enrolled
from tests.support.chaos.clients import Clients
from tests.support.chaos.mishaps import Mishaps
from tests.support.chaos.questions import MARK
from tests.support.chaos.report import Ledger, Report, report, ways_of
from tests.support.chaos.wires import Wires
from tests.support.installation import Installation, processes_naming, until
from tests.support.members import Member, Members

NODE_SETTINGS = {
    "PANAL_NODE__SLOTS": "4",
    "PANAL_OWNER__COOLDOWN_S": "1",
    "PANAL_NODE__POLL_S": "0.1",
}
GATEWAY_SETTINGS = {
    # A stream meets more mishaps in a minute here than in a year on desks.
    "PANAL_GATEWAY__ATTEMPTS_MAX": "10",
    "PANAL_GATEWAY__RESUMES_MAX": "10",
    "PANAL_LOG__LEVEL": "debug",
}


@dataclass(frozen=True)
class Plan:
    """The size of a run. ``seed`` decides questions and mishaps, though not their exact moments."""

    nodes: int
    clients: int
    seconds: float
    seed: int


@dataclass
class Aftermath:
    """The figures, and what was found wrong with what is left."""

    report: Report
    mishaps: dict[str, int]
    left_behind: list[str]


def run_chaos(folder: Path, plan: Plan, say: Callable[[str], None]) -> Aftermath:
    """Everything of it is ended before this returns."""
    installation = Installation(folder, arguments=["--no-node"], environment=GATEWAY_SETTINGS).start()
    wires = Wires(int(installation.environment["PANAL_BUS__NATS_PORT"]))
    wires.start()
    members = Members(installation, folder)
    try:
        for number in range(plan.nodes):
            _join(members, wires)
            say(f"node {number + 1} of {plan.nodes} joined")
        members.until_serving(*members.made)
        mishaps = Mishaps(installation, members.made, wires, random.Random(plan.seed))
        clients = Clients(installation.url, installation.key, plan.clients, plan.seed)
        clients.start()
        say(f"{plan.clients} clients ask for {plan.seconds:g} s")
        try:
            mishaps.run(plan.seconds)
        finally:
            mishaps.end_all()
            clients.stop()
        left_behind = _after(installation, members)
        for member in members.made:
            member.stop()
        installation.stop()
        left_behind += _secrets_in_logs(folder, installation.key) + _orphans(folder)
        ledger = Ledger.read(installation.home / "panal.db")
        result = report(clients.exchanges, ledger, mishaps.gateway_killed_s, ways_of(folder))
        return Aftermath(result, dict(mishaps.counts), left_behind)
    finally:
        members.close()
        installation.stop()
        wires.stop()


def _join(members: Members, wires: Wires) -> Member:
    """A node whose way to the bus is a wire of its own."""
    member = members.join(**NODE_SETTINGS)
    member.stop()
    enrolled = load_enrolled(member.agent_home)
    assert enrolled is not None
    enrolled.bus_urls = [f"tls://127.0.0.1:{wires.add()}"]
    save_enrolled(member.agent_home, enrolled)
    member.start()
    return member


def _after(installation: Installation, members: Members) -> list[str]:
    """Every node comes back by itself, and nothing is counted as running."""
    wrong = []
    ends_s = time.monotonic() + 60.0
    waiting = list(members.made)
    while waiting and time.monotonic() < ends_s:
        waiting = [member for member in waiting if not members.serves(member)]
        time.sleep(0.2)
    wrong += [f"{member.name} does not serve again" for member in waiting]
    try:
        until(lambda: not _running(installation), 30.0, "nothing runs")
    except AssertionError:
        wrong.append(f"still running: {_running(installation)}")
    return wrong


def _running(installation: Installation) -> dict[str, float]:
    """What nodes and gateway count as running now."""
    try:
        nodes = installation.admin().get("/api/v1/fleet")["nodes"]
        metrics = str(installation.admin().get("/metrics"))
    except BusError:
        return {"gateway": -1.0}
    found = {node["name"]: float(sum(replica["running"] for replica in node["replicas"])) for node in nodes}
    for line in metrics.splitlines():
        name, _, value = line.partition(" ")
        if name in ("panal_requests_in_flight", "panal_requests_queued", "panal_streams"):
            found[name] = float(value)
    return {name: count for name, count in found.items() if count}


def _secrets_in_logs(folder: Path, key: str) -> list[str]:
    found = []
    for file in folder.rglob("*.log*"):
        text = file.read_text(errors="replace")
        found += [
            f"a {what} in {file.name}" for what, word in (("prompt", MARK), ("key", key)) if word in text
        ]
    return found


def _orphans(folder: Path) -> list[str]:
    """Programs that are still there though whoever started them is gone."""
    ends_s = time.monotonic() + 10.0
    while (left := processes_naming(str(folder))) and time.monotonic() < ends_s:
        time.sleep(0.1)
    return [f"still runs: {' '.join(each.cmdline())[:120]}" for each in left]
