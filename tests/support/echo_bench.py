"""An agent over the memory bus with an echo engine in this process, whose counters a test can see."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from panal.bus.memory_bus import MemoryBroker
from panal.core.clock import SystemClock
from panal.core.ids import IdSource, NodeId, NodeKey
from panal.node.agent import Agent
from panal.node.availability import AlwaysAvailable, Availability
from panal.node.engines.attached import AttachedEngine, AttachedOptions
from panal.node.engines.echo_engine import EchoEngine, EchoOptions, serve_echo
from panal.node.settings import AgentSettings
from panal.protocol.messages import Heartbeat, Instruction, Report
from tests.support.agents import RunningAgent, running_agent
from tests.support.node_gateway import KEY, TestGateway


class TestController:
    """ControllerHandlers: keeps the reports."""

    __test__ = False

    def __init__(self, broker: MemoryBroker) -> None:
        self._bus = broker.controller()
        self.reports: list[Report] = []
        self._changed = asyncio.Event()

    async def start(self) -> None:
        await self._bus.start(self)

    async def close(self) -> None:
        await self._bus.close()

    def on_heartbeat(self, key: NodeKey, heartbeat: Heartbeat) -> None: ...

    def on_report(self, key: NodeKey, report: Report) -> None:
        self.reports.append(report)
        self._changed.set()

    def instruct(self, verb: str, **fields: object) -> str:
        name = f"ist_{verb}"
        self._bus.instruct(KEY, Instruction(id=name, verb=verb, **fields))  # type: ignore[arg-type]
        return name

    async def report_with(self, condition: Callable[[Report], bool]) -> Report:
        async with asyncio.timeout(20):
            while True:
                found = [report for report in self.reports if condition(report)]
                if found:
                    return found[0]
                self._changed.clear()
                await self._changed.wait()


@dataclass
class EchoBench:
    broker: MemoryBroker
    engine: EchoEngine
    gateway: TestGateway
    controller: TestController
    running: RunningAgent

    @property
    def agent(self) -> Agent:
        return self.running.agent

    async def engine_until(self, condition: Callable[[EchoEngine], bool], timeout_s: float = 5.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition(self.engine):
                await asyncio.sleep(0.005)


@asynccontextmanager
async def echo_bench(
    *,
    options: EchoOptions | None = None,
    slots: int = 8,
    availability: Availability | None = None,
    acknowledge: bool = True,
    grace_s: float = 2.0,
    waiting_max: int = 4,
) -> AsyncIterator[EchoBench]:
    """Ready to serve; everything is gone afterwards."""
    engine = EchoEngine(options or EchoOptions(slots=slots))
    server, tasks = await serve_echo(engine, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    broker = MemoryBroker()
    gateway = TestGateway(broker, acknowledge=acknowledge)
    controller = TestController(broker)
    await gateway.start()
    await controller.start()
    clock = SystemClock()
    agent = Agent(
        AgentSettings(
            node=NodeId("node_test"),
            agent_version="test",
            measure=False,
            grace_s=grace_s,
            waiting_max=waiting_max,
        ),
        broker.node(KEY),
        AttachedEngine(AttachedOptions(f"http://127.0.0.1:{port}", model_digest="echo", slots=slots)),
        availability or AlwaysAvailable(),
        clock,
        IdSource(clock, os.urandom),
    )
    try:
        async with running_agent(agent) as running:
            await gateway.heartbeat_with(lambda beat: any(replica.healthy for replica in beat.replicas))
            yield EchoBench(broker, engine, gateway, controller, running)
    finally:
        await gateway.close()
        await controller.close()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
