"""P26 to P28 from outside: pretended GPUs, agents that are killed, a machine that changes its address."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.asking import Asking
from tests.support.gpus import CARD, HardwareFile, hardware_file
from tests.support.installation import Program, short_folder, until
from tests.support.relay import relay
from tests.support.served import Served, engine_of, takes_work

EXAMPLES = Path(__file__).parents[2] / "examples" / "hardware"
UP = ["--engine", "echo", "--fake-hardware", str(EXAMPLES / "unequal-cards.toml")]


@pytest.fixture(scope="module")
def file() -> Iterator[HardwareFile]:
    with short_folder() as folder:
        yield hardware_file(folder)


@pytest.fixture(scope="module")
def desk(served: Served, file: HardwareFile) -> str:
    """A second node, with a card that the tests may take away."""
    served.join("desk", "--engine", "echo", "--fake-hardware", str(file.path))
    return "desk"


def shown(served: Served, node: str) -> dict[str, Any]:
    found: dict[str, Any] = served.installation.run("nodes", "show", node)
    return found


def state_of(served: Served, name: str) -> tuple[str, str]:
    node = served.fleet()[served.agents[name].name]
    return node["state"], node["reason"]


def test_unequal_cards_are_shown_and_the_engine_is_on_a_free_one(served: Served) -> None:
    joined = {agent.name for agent in served.agents.values()}
    node = shown(served, next(name for name in served.fleet() if name not in joined))
    names = [gpu["name"].removeprefix("NVIDIA RTX ") for gpu in node["gpus"]]
    assert names == ["6000 Ada", "A5000", "A4000"]
    (replica,) = node["replicas"]
    assert replica["gpu"] == node["gpus"][2]["uuid"], "the smallest that nobody uses"
    assert replica["memory_bytes"] > 5 * 1024**2
    assert replica["decode_s_per_token"] > 0
    words = Program(["nodes", "show", node["name"]], served.installation.environment)
    assert words.wait(30.0) == 0
    assert "NVIDIA RTX A4000 · " in words.output
    words.kill()


def test_p26_a_lost_gpu_is_told_and_heals_and_no_caller_notices(
    served: Served, desk: str, file: HardwareFile
) -> None:
    serves(served, desk)
    pid = served.agents[desk].program.process.pid
    asking = Asking(served)
    try:
        file.write({"error": "GPU_IS_LOST"})
        until(lambda: state_of(served, desk) == ("degraded", "GPU lost"), 10.0, "the loss is told")
        (gpu,) = shown(served, served.agents[desk].node)["gpus"]
        assert (gpu["uuid"], gpu["lost"]) == (CARD, True)
        assert gpu["memory_free_bytes"] is None and gpu["busy_share"] is None
        file.write()
        serves(served, desk)
    finally:
        asking.stop()
    assert asking.failures == [], f"of {asking.count} requests"
    assert asking.count > 5
    assert served.agents[desk].program.process.pid == pid and served.agents[desk].runs


def test_p27_an_agent_that_was_killed_comes_back_with_one_engine_and_the_same_node(
    served: Served, desk: str
) -> None:
    serves(served, desk)
    agent = served.agents[desk]
    nodes = len(served.installation.run("nodes", "list"))
    before = engine_of(agent.home)
    agent.kill()
    served.again(desk)
    until(lambda: ended(before), 10.0, "the old one ends")
    serves(served, desk)
    assert engine_of(agent.home).pid != before.pid
    assert len(served.installation.run("nodes", "list")) == nodes


def test_p27_another_address_is_the_same_node(served: Served, desk: str) -> None:
    """As with another Wi-Fi or a VPN: connections break, the next ones come from elsewhere."""
    serves(served, desk)
    agent = served.agents[desk]
    before = {node["id"] for node in served.installation.run("nodes", "list")}
    membership = agent.home / "agent" / "node.json"
    at_home = membership.read_text()
    content = json.loads(at_home)
    scheme, _, port = content["bus_urls"][0].rpartition(":")
    agent.program.stop()
    with relay(int(port), 600.0) as network:
        content["bus_urls"] = [f"{scheme}:{network.port}"]
        membership.write_text(json.dumps(content))
        served.again(desk)
        serves(served, desk)
        for source in ("127.0.0.2", "127.0.0.3"):
            made = network.connections
            network.move(source)
            until(lambda at=made: network.connections > at, 30.0, "it connects from there")  # type: ignore[misc]
            serves(served, desk)
        assert {node["id"] for node in served.installation.run("nodes", "list")} == before
        live = [name for name, node in served.fleet().items() if node["liveness"] == "live"]
        assert len(live) == len(before)
        agent.program.stop()
    membership.write_text(at_home)
    served.again(desk)


def serves(served: Served, name: str) -> None:
    """Wait until the joined node is heard now and takes work."""

    def now() -> bool:
        node = served.fleet()[served.agents[name].name]
        return takes_work(node) and node["silent_s"] < 1.2

    until(now, 30.0, f"{name} serves")


def ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
