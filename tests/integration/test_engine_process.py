"""Engine programs as children: crashes, kills, and a parent that is gone."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from panal.bus.memory_bus import MemoryBroker
from panal.core.clock import SystemClock
from panal.core.errors import EngineFailed
from panal.core.ids import IdSource, NodeId
from panal.node.agent import Agent
from panal.node.availability import AlwaysAvailable
from panal.node.engines.echo import echo_engine
from panal.node.engines.process import EngineProcess, Program
from panal.node.settings import AgentSettings
from tests.support.agents import running_agent
from tests.support.node_gateway import KEY, TestGateway, chat

PARENT = """
import asyncio, sys
from pathlib import Path
from panal.node.engines.echo import echo_engine
async def main():
    engine = echo_engine(Path(sys.argv[1]))
    await engine.start()
    print(*engine.process_ids(), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def gone(process_id: int) -> bool:
    try:
        return psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def until_gone(process_id: int) -> None:
    async with asyncio.timeout(10):
        while not gone(process_id):
            await asyncio.sleep(0.01)


async def test_an_engine_does_not_outlive_an_agent_that_was_killed(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    async with asyncio.timeout(20):
        child = int(await parent.stdout.readline())
    assert not gone(child)
    parent.kill()
    await parent.wait()
    await until_gone(child)


async def test_a_program_that_says_nothing_is_ended_and_its_log_is_quoted(tmp_path: Path) -> None:
    code = "import sys, time; print('out of memory', file=sys.stderr, flush=True); time.sleep(60)"
    process = EngineProcess(Program((sys.executable, "-c", code), tmp_path / "log", ready_s_max=1.0), "k")
    with pytest.raises(EngineFailed, match="out of memory"):
        await process.start()
    assert process.process_id is None


async def test_a_program_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    process = EngineProcess(Program(("/nonexistent/engine",), tmp_path / "log"), "k")
    with pytest.raises(EngineFailed, match="cannot be started"):
        await process.start()


async def test_a_program_that_ignores_every_request_to_go_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('{\"port\": 1}', flush=True); time.sleep(60)"
    )
    process = EngineProcess(Program((sys.executable, "-c", code), tmp_path / "log", ready_s_max=10), "k")
    await process.start()
    process_id = process.process_id
    assert process_id is not None
    await process.stop(0.2)
    assert gone(process_id) and process.exited.is_set()


async def test_the_key_is_in_no_argument_and_no_environment(tmp_path: Path) -> None:
    engine = echo_engine(tmp_path)
    await engine.start()
    [process_id] = engine.process_ids()
    key = engine._http.client.address.api_key  # type: ignore[union-attr]
    assert key
    process = psutil.Process(process_id)
    assert not any(key in word for word in [*process.cmdline(), *process.environ().values()])
    await engine.stop(2.0)


async def test_an_engine_that_was_killed_fails_its_attempts_and_comes_back(tmp_path: Path) -> None:
    broker = MemoryBroker()
    gateway = TestGateway(broker)
    await gateway.start()
    clock = SystemClock()
    engine = echo_engine(tmp_path)
    agent = Agent(
        AgentSettings(node=NodeId("node_test"), agent_version="test"),
        broker.node(KEY),
        engine,
        AlwaysAvailable(),
        clock,
        IdSource(clock, os.urandom),
    )
    async with running_agent(agent):
        report = await gateway.ready()
        assert report.prefill_tokens_per_s > 0 and report.decode_s_per_token > 0
        seen = gateway.open(chat("count 5000", x_echo={"delay_token_s": 0.01}))
        await seen.until(lambda attempt: len(attempt.text) > 5)
        [process_id] = engine.process_ids()
        os.kill(process_id, signal.SIGKILL)
        last = await seen.end()
        assert last.error is not None and last.error.kind == "failed"
        await gateway.heartbeat_with(lambda beat: beat.state == "starting")
        await gateway.ready()
        after = gateway.open(chat("count 5"))
        assert (await after.end()).finish == "stop"
    await gateway.close()


def test_the_agent_is_small() -> None:
    code = (
        "import sys, panal.node.agent, panal.node.engines.build;"
        "print([name for name in ('sqlalchemy', 'starlette', 'typer', 'rich', 'aiohttp', 'uvicorn',"
        " 'xllamacpp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
