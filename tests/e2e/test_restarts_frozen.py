"""P21 to P23: nodes that freeze, vanish unseen, or are cut off for a while, and how all of it heals."""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psutil
import pytest

from tests.e2e.test_up import PARTS
from tests.support.asking import say, wire
from tests.support.installation import processes_naming, until
from tests.support.served import Agent, EngineSeen, Reply, Served

UP = ["--no-node"]
HEALS_S_MAX = 30.0
PAUSE_S = 10.0
SHORT = wire(say("short"))


def have(served: Served, *names: str) -> None:
    """See that exactly these nodes serve."""
    for name, agent in served.agents.items():
        if name not in names and agent.runs:
            agent.program.stop()
    for name in names:
        if name not in served.agents:
            served.join(name, "--engine", "echo")
        elif not served.agents[name].runs:
            served.again(name)
    served.until_serving(*names)


def agent_process(agent: Agent) -> psutil.Process:
    return psutil.Process(agent.program.process.pid)


@contextmanager
def frozen(process: psutil.Process) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def texts(count: int) -> str:
    return " ".join(map(str, range(1, count + 1)))


@pytest.mark.parametrize("what", ["agent", "engine"])
@pytest.mark.parametrize("when", ["before the first byte", "in mid-stream"])
@pytest.mark.timeout(180)
def test_p21_a_frozen_node_holds_no_request(served: Served, what: str, when: str) -> None:
    have(served, "one", "two")
    early = when == "before the first byte"
    request = say("count 150", delay_token_s=0.01, **({"delay_first_s": 2.0} if early else {}))
    text, chunks = "", iter(())
    engines = {name: served.agents[name].engine() for name in ("one", "two")}
    seen = {name: EngineSeen(process) for name, process in engines.items()}
    with ThreadPoolExecutor() as pool, served.client() as client:
        began = pool.submit(lambda: client.chat.completions.create(**request, stream=True))
        speaking = served.speaking()
        other = "two" if speaking == "one" else "one"
        if not early:
            chunks = iter(began.result())
            while "40 " not in text:
                text += next(chunks).choices[0].delta.content or ""
        agent = served.agents[speaking]
        target = agent_process(agent) if what == "agent" else engines[speaking]
        engine = seen[speaking]
        frozen_s = time.monotonic()
        with frozen(target):
            assert not (early and began.done())
            for chunk in iter(began.result()) if early else chunks:
                text += chunk.choices[0].delta.content or ""
            print(f"{what} frozen {when}: answer whole after {time.monotonic() - frozen_s:.1f} s")
            assert text == texts(150)
            replies = list(pool.map(lambda _: served.call("POST", "/v1/chat/completions", SHORT), range(10)))
            assert [reply.status for reply in replies] == [200] * 10
            for reply in replies:
                made = served.contributions(reply.json["id"])
                assert [each["node"] for each in made] == [served.agents[other].node], "no new work for it"
        made = served.contributions(chunk.id)
        assert [each["node"] for each in made] == [agent.node, served.agents[other].node]
    until(lambda: engine.stats()["running"] == 0, HEALS_S_MAX, "what it still did for nobody has ended")
    served.until_serving("one", "two")
    served.until_idle()


@pytest.mark.timeout(180)
def test_p23_a_node_that_died_while_nobody_looked_gets_no_traffic(served: Served) -> None:
    """The controller is part of the gateway's process: it is paused, and so misses what happens."""
    have(served, "one", "two", "three")
    dead = served.agents["three"]
    home = str(served.installation.home)
    gateway = next(each for each in processes_naming(home) if PARTS["gateway"](each.cmdline()))
    with frozen(gateway):
        engine = dead.engine()
        time.sleep(0.6)  # so long that it has said once more that it lives, which waits in the bus now
        dead.kill()
        psutil.wait_procs([engine], timeout=5.0)
        assert not engine.is_running()
        time.sleep(PAUSE_S)  # the pause itself

    def ask(_number: int) -> tuple[Reply, float]:
        begun_s = time.monotonic()
        reply = served.call("POST", "/v1/chat/completions", SHORT)
        return reply, time.monotonic() - begun_s

    with ThreadPoolExecutor(6) as pool:
        asked = list(pool.map(ask, range(30)))
    assert [reply.status for reply, _s in asked] == [200] * 30
    tried = [served.record_of(reply.json["id"])["attempts"] for reply, _s in asked]
    met = sum(attempts > 1 for attempts in tried)
    print(f"30 requests: {met} met the dead node, longest {max(took_s for _r, took_s in asked):.2f} s")
    assert met <= 1
    ready = served.call("GET", "/ready", key=None)
    assert (ready.status, ready.json["status"]) == (200, "degraded")
    reasons = {each["code"]: each["count"] for each in ready.json["reasons"]}
    assert reasons == {"nodes_missing": 1}
    metrics = served.metrics()
    assert 'panal_nodes{state="missing"} 1.0' in metrics
    assert 'panal_nodes{state="ready"} 2.0' in metrics
    assert "panal_nodes_expected 3.0" in metrics
    served.again("three")
    served.until_serving("one", "two", "three")
    ready = served.call("GET", "/ready", key=None)
    assert (ready.json["status"], ready.json["reasons"]) == ("ready", [])
    assert 'panal_nodes{state="missing"} 0.0' in served.metrics()
