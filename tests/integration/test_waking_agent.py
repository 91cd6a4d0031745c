"""An agent told to wake a neighbour, over the bus: it does, whoever led before, and reports that it did."""

import asyncio
import os
from pathlib import Path

import pytest

from panal.bus.memory_bus import MemoryBroker
from panal.core.clock import SystemClock
from panal.core.ids import IdSource, NodeId, NodeKey
from panal.node import waking
from panal.node.agent import Agent
from panal.node.availability import AlwaysAvailable
from panal.node.engines.echo import echo_engine
from panal.node.settings import AgentSettings
from panal.policy.waking import magic_packet
from panal.protocol.messages import Heartbeat, Instruction, Report
from tests.support.agents import running_agent
from tests.support.node_gateway import KEY

MAC, OWN = "3c:52:82:0a:0b:0c", "3c:52:82:0a:0b:01"


class Listening:
    """A controller that writes down reports."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def on_heartbeat(self, key: NodeKey, heartbeat: Heartbeat) -> None: ...

    def on_report(self, key: NodeKey, report: Report) -> None:
        self.reports.append(report)


async def test_an_instruction_of_no_term_wakes_a_neighbour_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[bytes] = []
    monkeypatch.setattr(waking, "send", lambda packets, _addresses: sent.extend(packets) or len(packets))
    broker, listening, clock = MemoryBroker(), Listening(), SystemClock()
    controller = broker.controller()
    await controller.start(listening)
    settings = AgentSettings(node=NodeId("node_test"), agent_version="test", wake_macs=(OWN,))
    agent = Agent(
        settings,
        broker.node(KEY),
        echo_engine(tmp_path),
        AlwaysAvailable(),
        clock,
        IdSource(clock, os.urandom),
    )
    async with running_agent(agent), asyncio.timeout(30):
        while not any(report.wake == [OWN] for report in listening.reports):
            await asyncio.sleep(0.02)
        controller.instruct(KEY, Instruction(id="ist_1", verb="accept", term=7))
        controller.instruct(KEY, Instruction(id="ist_2", verb="wake", macs=[MAC, "10.0.0.1"]))
        while not sent or "ist_2" not in [report.instruction for report in listening.reports]:
            await asyncio.sleep(0.02)
    assert sent == [magic_packet(MAC)]
    await controller.close()
