"""P26 with a whole agent: its GPU is lost and comes back; nothing of it tells when the owner is at work."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from panal.bus.memory_bus import MemoryBroker
from panal.core.clock import SystemClock
from panal.core.ids import IdSource, NodeId
from panal.core.nodes import NodeState
from panal.core.settings import NodeSettings
from panal.node.agent import Agent
from panal.node.availability import AlwaysAvailable
from panal.node.engines.echo import echo_engine
from panal.node.hardware.gpu_watch import LOOK_EACH_S
from panal.node.settings import AgentSettings
from panal.protocol.codec import encode
from panal.protocol.messages import Heartbeat
from tests.support.agents import running_agent
from tests.support.gpu_nodes import gpus_of
from tests.support.gpus import CARD, HardwareFile, hardware_file
from tests.support.node_gateway import KEY, TestGateway, chat

SLACK_S = 3.0
"""What a busy machine may add to one probe interval."""

PROGRAM = {"pid": 4242, "kind": "graphics", "memory_mib": 333, "busy_percent": 8}


class Desk(AlwaysAvailable):
    """An owner who may be at work: then no state takes work."""

    at_work = False

    @property
    def state(self) -> NodeState:
        return NodeState.OWNER if self.at_work else super().state


@dataclass
class Node:
    agent: Agent
    gateway: TestGateway
    file: HardwareFile
    desk: Desk

    async def until(self, state: str) -> float:
        begun_s = time.monotonic()
        await self.gateway.heartbeat_with(lambda beat: beat.state == state)
        return time.monotonic() - begun_s


@pytest.fixture
async def node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    broker, clock, desk = MemoryBroker(), SystemClock(), Desk()
    gateway = TestGateway(broker)
    await gateway.start()
    file = hardware_file(tmp_path)
    file.cards[0]["process"] = [PROGRAM]
    file.write()
    agent = Agent(
        AgentSettings(node=NodeId("node_test"), agent_version="test"),
        broker.node(KEY),
        echo_engine(tmp_path, options=("--delay-token-s", "0.02")),
        desk,
        clock,
        IdSource(clock, os.urandom),
        gpus=gpus_of(tmp_path, file.path, clock, getattr(request, "param", None)),
    )
    async with running_agent(agent):
        await gateway.ready()
        yield Node(agent, gateway, file, desk)
    await gateway.close()


@pytest.mark.parametrize(
    "loss",
    [
        {"error": "GPU_IS_LOST"},
        {"error": "UNKNOWN"},
        {"error": "LIB_RM_VERSION_MISMATCH"},
        {"gpu": CARD, "set": {"gone": True}},
    ],
    ids=["lost", "error", "another driver", "gone"],
)
async def test_p26_a_lost_gpu_degrades_the_node_within_one_probe_and_heals_without_a_restart(
    node: Node, loss: dict[str, object]
) -> None:
    before = await node.gateway.ready()
    running = node.gateway.open(chat("count 200"))
    await running.until(lambda seen: len(seen.events) > 3)
    node.file.write(loss)
    assert await node.until("degraded") < LOOK_EACH_S + SLACK_S
    beat = node.gateway.heartbeat
    assert beat is not None
    assert beat.reason == "GPU lost"
    assert [(each.uuid, each.lost) for each in beat.gpus] == [(CARD, True)]
    assert not beat.replicas[0].healthy
    await running.until(lambda seen: any(event.leaving for event in seen.events))
    refused = await node.gateway.open(chat("now?")).end()
    assert refused.error is not None and refused.error.kind == "refused"
    instance = node.agent.instance
    node.file.write()
    after = await node.gateway.heartbeat_with(lambda beat: beat.state in ("available", "serving"))
    assert node.agent.instance == instance, "the agent went on"
    assert after.replicas[0].replica != before.replica, "a fresh engine, as the old one's context is gone"
    answer = await node.gateway.open(chat("back")).end()
    assert answer.finish == "stop"


@pytest.mark.parametrize("node", [NodeSettings(cpu_when_gpu_lost=True)], indirect=True, ids=["allowed"])
async def test_p26_where_it_is_allowed_the_processor_serves_visibly_until_the_gpu_is_back(node: Node) -> None:
    def on_the_processor(beat: Heartbeat) -> bool:
        return beat.state == "available" and "runs on the processor" in beat.replicas[0].note

    node.file.write({"error": "GPU_IS_LOST"})
    beat = await node.gateway.heartbeat_with(on_the_processor)
    assert (beat.replicas[0].gpu, beat.gpus[0].lost) == ("", True)
    answer = await node.gateway.open(chat("slowly")).end()
    assert answer.finish == "stop"
    node.file.write()
    after = await node.gateway.heartbeat_with(
        lambda beat: beat.state == "available" and beat.replicas[0].gpu == CARD
    )
    assert after.replicas[0].note == ""


async def test_p26_a_driver_that_hangs_costs_no_heartbeat_and_ends_as_a_loss(node: Node) -> None:
    node.file.write({"hang_s": 9})
    beats = set()
    async with asyncio.timeout(30):
        while node.gateway.heartbeat is None or node.gateway.heartbeat.state != "degraded":
            if node.gateway.heartbeat is not None:
                beats.add(node.gateway.heartbeat.sequence)
            await asyncio.sleep(0.05)
    assert len(beats) >= 4
    node.file.write()
    await node.until("available")


async def test_the_heartbeat_tells_the_facts_while_work_is_taken(node: Node) -> None:
    beat = await node.gateway.heartbeat_with(lambda beat: bool(beat.gpus) and beat.state == "available")
    (gpu,) = beat.gpus
    assert (gpu.name, gpu.driver, gpu.vendor) == ("NVIDIA Test", "fake 580", "nvidia")
    assert gpu.memory_total_bytes == 24 * 1024**3
    assert gpu.memory_free_bytes is not None
    assert gpu.memory_free_bytes <= 24 * 1024**3 - 333 * 1024**2
    assert beat.replicas[0].gpu == CARD
    assert beat.replicas[0].load_s > 0
    assert beat.replicas[0].memory_bytes > 5 * 1024**2, "the engine's real memory"


async def test_what_changes_with_use_stays_here_while_the_owner_is_at_work(node: Node) -> None:
    node.desk.at_work = True
    beat = await node.gateway.heartbeat_with(lambda beat: beat.state == "owner")
    on_the_wire = msgspec.msgpack.decode(encode(beat))
    (gpu,) = on_the_wire["gpus"]
    assert set(gpu) == {"uuid", "vendor", "name", "driver", "memory_total_bytes"}
    node.desk.at_work = False
    free = await node.gateway.heartbeat_with(lambda beat: beat.state == "available")
    wire = encode(free)
    assert b"4242" not in wire and b"process" not in wire
