"""P19: an engine that takes its time to load is waited for, and one that failed is tried again."""

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.support.asking import say, wire
from tests.support.installation import processes_naming, until
from tests.support.served import Agent, Reply, Served

UP = ["--no-node"]
LOAD_S = 8.0
LIMIT_S = 2.0
ASK = wire(say("are you there?"))


def ask_ten(served: Served) -> list[Reply]:
    with ThreadPoolExecutor(10) as pool:
        return list(pool.map(lambda _: served.call("POST", "/v1/chat/completions", ASK), range(10)))


def join(served: Served, name: str, *options: str) -> Agent:
    return served.join(
        name,
        "--engine",
        "echo",
        *(f"--echo-option={each}" for each in options),
        environment={"PANAL_NODE__START_S_MAX": str(LIMIT_S)},
    )


def starting(served: Served, agent: Agent) -> bool:
    node = served.fleet().get(agent.name)
    return node is not None and node["state"] == "starting" and bool(node["replicas"])


def engine_pids(agent: Agent) -> set[int]:
    found = set()
    for each in processes_naming(str(agent.home)):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "panal.node.engines.echo_engine" in each.cmdline():
                found.add(each.pid)
    return found


@pytest.mark.timeout(120)
def test_p19_ten_requests_wait_for_one_slow_start(served: Served) -> None:
    """It takes four times the limit, and shows that it makes progress."""
    agent = join(served, "slow", f"--load-s={LOAD_S}", "--load-steps=16")
    until(lambda: starting(served, agent), 20.0, "it is loading")
    until(lambda: engine_pids(agent), 20.0, "the engine's process is there")
    first = engine_pids(agent)
    begun_s = time.monotonic()
    replies = ask_ten(served)
    print(f"ten requests were served {time.monotonic() - begun_s:.1f} s after they came")
    assert [reply.status for reply in replies] == [200] * 10
    assert {reply.json["choices"][0]["message"]["content"] for reply in replies} == {"are you there?"}
    assert engine_pids(agent) == first and len(first) == 1, "exactly one start"
    agent.program.stop()


@pytest.mark.timeout(120)
def test_p19_a_load_that_stands_still_is_tried_again_and_never_given_up(served: Served) -> None:
    """It takes longer than the limit and shows nothing: requests hear so, and the limit can be raised."""
    agent = join(served, "silent", f"--load-s={LOAD_S}")
    seen: set[int] = set()

    def three_starts() -> bool:
        seen.update(engine_pids(agent))
        return len(seen) >= 3

    until(lambda: engine_pids(agent), 20.0, "the engine's process is there")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_ten, served)
        until(three_starts, 40.0, "it is tried again")
        replies = asked.result()
    for reply in replies:
        assert (reply.status, reply.error["code"]) == (503, "no_replica_available")
        assert int(reply.headers["retry-after"]) >= 1
    agent.program.stop()
    served.again("silent", environment={"PANAL_NODE__START_S_MAX": "60"})
    assert [reply.status for reply in retried(served)] == [200] * 10
    agent.program.stop()


def retried(served: Served) -> list[Reply]:
    """Ten requests once the model is being loaded again."""
    until(lambda: starting(served, served.agents["silent"]), 20.0, "it is loading")
    return ask_ten(served)
