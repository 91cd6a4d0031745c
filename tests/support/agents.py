"""Agents that run for the length of a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from panal.node.agent import Agent, Ending


@dataclass
class RunningAgent:
    agent: Agent
    task: asyncio.Task[Ending]


@asynccontextmanager
async def running_agent(agent: Agent) -> AsyncIterator[RunningAgent]:
    """Run it, then stop it in order; a failure of the agent is the test's failure."""
    running = RunningAgent(agent, asyncio.get_running_loop().create_task(agent.run()))
    try:
        yield running
    finally:
        agent.stop()
        async with asyncio.timeout(30):
            await running.task
