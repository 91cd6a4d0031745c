"""P27: engines that an agent left behind, and an engine that is killed again and again."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil

from panal.bus.memory_bus import MemoryBroker
from panal.core.clock import SystemClock
from panal.core.ids import IdSource, NodeId
from panal.node.agent import Agent
from panal.node.availability import AlwaysAvailable
from panal.node.engine_keeper import FAILURES_MAX
from panal.node.engines.child import Ready
from panal.node.engines.echo import echo_engine
from panal.node.engines.leftovers import MARK, Leftovers, Record, end_leftovers
from panal.node.engines.process import EngineProcess, Program
from panal.node.settings import AgentSettings
from tests.support.agents import running_agent
from tests.support.node_gateway import KEY, TestGateway

STUBBORN = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], stdout=subprocess.DEVNULL)
print('{msgspec.json.encode(Ready(port=1)).decode()}', flush=True)
time.sleep(120)
"""
"""A program that outlives its parent and ignores what it is asked, with a child of its own."""

PARENT = """
import asyncio, sys
from pathlib import Path
from panal.node.engines.process import EngineProcess, Program
async def main():
    program = Program((sys.executable, "-c", sys.argv[2]), Path(sys.argv[1]) / "engine.log")
    process = EngineProcess(program, "k")
    await process.start()
    print(process.process_id, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def orphan_of_a_killed_agent(folder: Path) -> list[psutil.Process]:
    """The engine and its child, whose agent was killed with -9."""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(folder), STUBBORN, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    async with asyncio.timeout(30):
        engine = psutil.Process(int(await parent.stdout.readline()))
        while not (children := engine.children()):
            await asyncio.sleep(0.02)
    parent.kill()
    await parent.wait()
    assert engine.is_running() and children[0].is_running()
    return [engine, *children]


async def test_p27_an_engine_that_a_killed_agent_left_is_found_and_ended_with_its_children(
    tmp_path: Path,
) -> None:
    left = await orphan_of_a_killed_agent(tmp_path)
    pids = await asyncio.to_thread(end_leftovers, tmp_path)
    assert pids == sorted(each.pid for each in left)
    assert all(ended(each.pid) for each in left)
    assert await asyncio.to_thread(end_leftovers, tmp_path) == []


async def test_p27_the_next_engine_of_the_same_node_ends_it_too_and_starts(tmp_path: Path) -> None:
    left = await orphan_of_a_killed_agent(tmp_path)
    process = EngineProcess(Program((sys.executable, "-c", STUBBORN), tmp_path / "engine.log"), "k")
    await process.start()
    try:
        assert all(ended(each.pid) for each in left)
        assert process.process_id not in {each.pid for each in left}
    finally:
        await process.stop(0.0)


def test_p27_a_pid_that_was_given_out_again_is_left_alone(tmp_path: Path) -> None:
    """The record names a process that runs, but it is not the one that was recorded."""
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        born_utc_s = psutil.Process(stranger.pid).create_time()
        file = tmp_path / "engine.running"
        for record in (
            Record(folder=str(tmp_path), mark="ours", pid=stranger.pid, born_utc_s=born_utc_s),
            Record(folder=str(tmp_path), mark="ours", pid=stranger.pid, born_utc_s=born_utc_s - 100),
        ):
            file.write_bytes(msgspec.json.encode(record))
            assert Leftovers(file).end_all() == []
        assert stranger.poll() is None
        file.write_bytes(b"not a record")
        assert Leftovers(file).end_all() == []
    finally:
        stranger.kill()
        stranger.wait()


def test_the_mark_is_new_for_every_start_and_private(tmp_path: Path) -> None:
    file = tmp_path / "engine.running"
    one, two = Leftovers(file).begin()[MARK], Leftovers(file).begin()[MARK]
    assert one != two
    assert file.stat().st_mode & 0o077 == 0


async def test_p27_an_engine_killed_again_and_again_is_given_up_with_a_reason_at_little_cost(
    tmp_path: Path,
) -> None:
    broker, clock = MemoryBroker(), SystemClock()
    gateway = TestGateway(broker)
    await gateway.start()
    agent = Agent(
        AgentSettings(node=NodeId("node_test"), agent_version="test"),
        broker.node(KEY),
        echo_engine(tmp_path),
        AlwaysAvailable(),
        clock,
        IdSource(clock, os.urandom),
    )
    kills = 0
    cpu_begun_s, begun_s = time.process_time(), time.monotonic()

    async def kill_it() -> None:
        nonlocal kills
        while kills < 20:
            for pid in agent.engine_process_ids():
                psutil.Process(pid).kill()
                kills += 1
                while pid in agent.engine_process_ids():
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.05)

    async with running_agent(agent):
        killing = asyncio.get_running_loop().create_task(kill_it())
        beat = await gateway.heartbeat_with(lambda beat: "failed" in beat.reason, timeout_s=90)
        assert beat.state == "degraded"
        assert f"failed {FAILURES_MAX} times" in beat.reason
        assert "exit code -9" in beat.replicas[0].note or "-9" in beat.reason
        await asyncio.sleep(2.0)
        killing.cancel()
        assert kills == FAILURES_MAX, "nobody starts it any more"
        share = (time.process_time() - cpu_begun_s) / (time.monotonic() - begun_s)
        print(f"{share:.1%} of a core while it was killed again and again (bound: 5 %)")
        assert share < 0.5, "it spins"
    await gateway.close()
