"""Parts of an installation are killed or frozen under load: clients see retriable errors at worst."""

import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from panal.cli.api_client import ApiRefused
from tests.e2e.test_up import PARTS
from tests.support.asking import say
from tests.support.installation import processes_naming, until
from tests.support.served import EngineSeen, Served, engine_of
from tests.support.under_load import UnderLoad, under_load

UP = ["--engine", "echo"]
BACK_S_MAX = 30.0
ENGINE_STOPS_S_MAX = 5.0
OUTAGE_S = 5.0


@pytest.fixture
def place(served: Served) -> Served:
    """Two nodes: the installation's own and one that joined."""
    if "two" not in served.agents:
        served.join("two", "--engine", "echo")
    until(lambda: serving(served) == 2, BACK_S_MAX, "both nodes serve")
    return served


def serving(served: Served) -> int:
    return sum(
        node["liveness"] == "live" and node["state"] in ("available", "serving")
        for node in served.fleet().values()
    )


def part(served: Served, name: str) -> psutil.Process:
    home = str(served.installation.home)
    found = [each for each in processes_naming(home) if PARTS[name](each.cmdline())]
    assert len(found) == 1, (name, found)
    return found[0]


def engines(served: Served) -> list[EngineSeen]:
    homes = (served.installation.home / "agent", served.agents["two"].home)
    return [EngineSeen(engine_of(home)) for home in homes]


def status(served: Served) -> tuple[int, str]:
    """What /ready says: status, and the code of what is missing."""
    try:
        reply = served.call("GET", "/ready", key=None)
    except OSError:
        return 0, "no gateway"
    if reply.status != 200:
        return reply.status, reply.error["code"]
    return 200, reply.json["status"]


def through(served: Served, fault: Callable[[UnderLoad], None]) -> UnderLoad:
    """Load before, during and after a fault; afterwards the answers are right and the books are exact."""
    with under_load(served.installation.http_port, served.installation.key) as load:
        until(lambda: len(load.complete) >= 6, 20.0, "the load runs")
        fault(load)
        after_s = time.monotonic()
        until(lambda: load.completed_since(after_s) >= 6, BACK_S_MAX, f"answers again: {load.kinds}")
    print(load.table())
    assert load.wrong == []
    served.until_idle()
    check_usage(served, load)
    return load


def check_usage(served: Served, load: UnderLoad) -> None:
    """Every whole answer stands in the books exactly once, with what its client was shown."""
    wanted = {"req_" + each.response_id.partition("-")[2]: len(each.text) for each in load.complete}

    def written() -> bool:
        items = served.admin().get("/api/v1/usage", limit=1000)["items"]
        seen = [each for each in items if each["request"] in wanted]
        assert len(seen) == len({each["request"] for each in seen}), "a request stands there twice"
        assert all(each["completion_tokens"] == wanted[each["request"]] for each in seen)
        return len(seen) == len(wanted)

    until(written, 20.0, "the usage of every whole answer is written")


@pytest.mark.timeout(180)
def test_a_killed_gateway_stops_no_more_than_its_own_streams_and_engines_stop_soon(place: Served) -> None:
    killed_s: list[float] = []

    def kill(load: UnderLoad) -> None:
        gateway = part(place, "gateway")
        gateway.kill()
        killed_s.append(time.monotonic())
        gateway.wait(10.0)
        until(lambda: status(place) == (200, "ready"), BACK_S_MAX, "the gateway is ready again")
        print(f"gateway ready {time.monotonic() - killed_s[0]:.1f} s after its death")

    load = through(place, kill)
    cut = [each for each in load.outcomes if each.kind != "complete"]
    assert all(each.kind.startswith("cut") or each.kind == "503" for each in cut), load.kinds
    streams = [each for each in cut if each.response_id]
    assert streams, "some streams were cut"
    for each in streams:
        request = "req_" + each.response_id.partition("-")[2]
        made = until(
            lambda request=request: contributions(place, request),  # type: ignore[misc]
            15.0,
            "what the node made for the dead gateway is written",
        )
        assert made[0]["completion_tokens"] >= len(each.text)


def contributions(place: Served, request: str) -> list[dict[str, Any]]:
    """Empty while nothing is written yet."""
    try:
        found: list[dict[str, Any]] = place.admin().get(f"/api/v1/usage/{request}/contributions")
    except ApiRefused:
        return []
    return found


@pytest.mark.timeout(120)
def test_engines_that_work_for_a_dead_gateway_stop_within_five_seconds(place: Served) -> None:
    seen = engines(place)
    before = sum(each.stats()["cancelled"] for each in seen)
    streams = []
    client = place.client()
    try:
        for _ in range(6):
            request = say("count 4000", delay_token_s=0.01)
            stream = client.chat.completions.create(**request, stream=True)
            next(iter(stream))
            streams.append(stream)
        until(lambda: sum(each.stats()["running"] for each in seen) == 6, 10.0, "six answers run")
        part(place, "gateway").kill()
        killed_s = time.monotonic()
        until(
            lambda: sum(each.stats()["cancelled"] for each in seen) == before + 6,
            ENGINE_STOPS_S_MAX,
            "the engines stopped",
        )
        print(f"engines stopped {time.monotonic() - killed_s:.1f} s after the gateway's death")
    finally:
        client.close()
    until(lambda: status(place) == (200, "ready"), BACK_S_MAX, "the gateway is ready again")


@pytest.mark.timeout(120)
def test_a_killed_bus_costs_no_answer(place: Served) -> None:
    def kill(_load: UnderLoad) -> None:
        bus = part(place, "nats-server")
        bus.kill()
        bus.wait(10.0)
        killed_s = time.monotonic()
        until(lambda: status(place)[0] == 503, 5.0, "it says that it is not ready")
        until(lambda: status(place) == (200, "ready"), BACK_S_MAX, "it is ready again")
        print(f"ready {time.monotonic() - killed_s:.1f} s after the bus's death")

    load = through(place, kill)
    assert set(load.kinds) == {"stream complete", "whole complete"}, load.kinds


@pytest.mark.timeout(120)
def test_a_bus_that_is_frozen_for_five_seconds_costs_no_answer(place: Served) -> None:
    def freeze(_load: UnderLoad) -> None:
        bus = part(place, "nats-server")
        bus.send_signal(signal.SIGSTOP)
        frozen_s = time.monotonic()
        try:
            until(lambda: status(place) == (503, "bus_unavailable"), OUTAGE_S, "it says that the bus is away")
            print(f"not ready {time.monotonic() - frozen_s:.1f} s after the freeze")
            until(lambda: time.monotonic() - frozen_s > OUTAGE_S, OUTAGE_S + 1.0, "the outage is over")
        finally:
            bus.send_signal(signal.SIGCONT)
        until(lambda: status(place) == (200, "ready"), BACK_S_MAX, "it is ready again")
        print(f"ready {time.monotonic() - frozen_s - OUTAGE_S:.1f} s after the thaw")

    load = through(place, freeze)
    running = [each for each in load.outcomes if each.kind not in ("complete", "503")]
    assert running == [], "what ran goes on; at most new requests are put off"


@pytest.mark.timeout(180)
def test_a_killed_agent_is_one_node_again_with_its_flags_and_no_orphan(place: Served) -> None:
    first, second = place.fleet().values()
    own = next(each for each in (first, second) if each["name"] != place.agents["two"].name)

    def kill(_load: UnderLoad) -> None:
        agent, engine = part(place, "agent"), part(place, "engine")
        agent.kill()
        agent.wait(10.0)
        psutil.wait_procs([engine], timeout=5.0)
        assert not engine.is_running(), "no engine outlives its agent"
        until(lambda: serving(place) == 2, BACK_S_MAX, "it serves again")

    load = through(place, kill)
    assert set(load.kinds) == {"stream complete", "whole complete"}, load.kinds
    assert len(place.installation.run("nodes", "list")) == 2
    for flag, word in (("cordon", "cordoned"), ("drain", "draining")):
        place.installation.run("nodes", flag, own["name"])
        until(lambda: state_of(place, own["id"]) == "draining", 20.0, "the agent knows")
        part(place, "agent").kill()
        part(place, "gateway").kill()
        until(lambda: status(place)[0] == 200, BACK_S_MAX, "the other node serves")
        until(lambda: state_of(place, own["id"]) == "draining", BACK_S_MAX, "the new agent knows as well")
        listed = {each["id"]: each["membership"] for each in place.installation.run("nodes", "list")}
        assert listed[own["id"]] == word
        assert len(listed) == 2
    place.installation.run("nodes", "uncordon", own["name"])
    until(lambda: serving(place) == 2, BACK_S_MAX, "both nodes serve")


def state_of(served: Served, node: str) -> str:
    try:
        found = next(each for each in served.fleet().values() if each["id"] == node)
    except Exception:  # noqa: BLE001 - no gateway at the moment
        return ""
    return str(found["state"]) if found["liveness"] == "live" else ""
