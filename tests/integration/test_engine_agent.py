"""The agent with a real engine program over the memory bus."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from panal.bus.memory_bus import MemoryBroker
from panal.core.clock import SystemClock
from panal.core.ids import IdSource, NodeId
from panal.node.agent import Agent, Ending
from panal.node.availability import AlwaysAvailable
from panal.node.engines.echo import echo_engine
from panal.node.settings import AgentSettings
from tests.support.agents import RunningAgent, running_agent
from tests.support.node_gateway import KEY, TestGateway, chat, chunks_of, text_of

NUMBERS = " ".join(str(number) for number in range(1, 51))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[tuple[RunningAgent, TestGateway]]:
    broker = MemoryBroker()
    gateway = TestGateway(broker)
    await gateway.start()
    clock = SystemClock()
    agent = Agent(
        AgentSettings(node=NodeId("node_test"), agent_version="test"),
        broker.node(KEY),
        echo_engine(tmp_path),
        AlwaysAvailable(),
        clock,
        IdSource(clock, os.urandom),
    )
    async with running_agent(agent) as running:
        await gateway.ready()
        yield running, gateway
    await gateway.close()


async def test_streams_an_answer_with_one_role_one_finish_one_usage_and_done(
    node: tuple[RunningAgent, TestGateway],
) -> None:
    _, gateway = node
    seen = gateway.open(chat("count 50"))
    last = await seen.end()
    assert last.finish == "stop"
    assert last.usage is not None and last.usage.completion_tokens == len(NUMBERS)
    assert text_of(seen.data) == NUMBERS == seen.text
    chunks = chunks_of(seen.data)
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"] == [] and chunks[-2]["usage"]["completion_tokens"] == len(NUMBERS)
    assert {chunk["id"] for chunk in chunks[:-1]} == {"chatcmpl-test"}
    assert {chunk["model"] for chunk in chunks[:-1]} == {"client-model"}
    roles = [c for chunk in chunks[:-1] for c in chunk["choices"] if "role" in c["delta"]]
    assert len(roles) == 1
    assert seen.numbers == list(range(len(seen.numbers)))
    assert seen.token_ids == list(NUMBERS.encode())


async def test_assembles_a_whole_answer(node: tuple[RunningAgent, TestGateway]) -> None:
    _, gateway = node
    seen = gateway.open(chat("count 50"), stream=False)
    last = await seen.end()
    assert b"".join(event.data for event in seen.events) == last.data
    assert seen.text == NUMBERS


async def test_ends_cleanly_when_told_to(node: tuple[RunningAgent, TestGateway]) -> None:
    running, _ = node
    running.agent.stop()
    assert await running.task == Ending.STOPPED
