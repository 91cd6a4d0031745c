"""What was lost between a gateway and a node shows when the gateway says what it follows."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import pytest

from panal.core.clock import ManualClock
from panal.core.ids import GatewayId, InstanceId, ReplicaId
from panal.node import presence
from panal.node.attempts import OUT_OF_NUMBER, Attempts, ReplicaIdentity
from panal.node.counts import KeptCounts
from panal.node.engines.engine import Delta, EngineCall, EngineFacts
from panal.node.outbox import Outbox
from panal.node.presence import SILENT_AFTER_S, GatewaysHeard
from panal.protocol.messages import Frame, Present
from tests.support.node_gateway import run_attempt

HERE, OTHER = GatewayId("gw_test"), GatewayId("gw_other")


class EndlessEngine:
    """Says one word and then nothing, until it is stopped."""

    facts = EngineFacts(kind="fake", model="m", slots=8)

    async def generate(self, call: EngineCall) -> AsyncGenerator[Delta, None]:
        yield Delta(text="word", tokens=1, plain=True)
        await asyncio.Event().wait()


class Node:
    """Attempts with everything they send, and a bus that answers as the test says."""

    def __init__(self) -> None:
        self.sent: list[tuple[GatewayId, Frame]] = []
        self.clock = ManualClock()
        self.counts = KeptCounts()
        self.bus_answers = True
        self.attempts = Attempts(
            ReplicaIdentity(InstanceId("ins_test"), ReplicaId("rep_test")),
            EndlessEngine(),  # type: ignore[arg-type]
            Outbox(self._send),
            self.counts,
            lambda: None,
            self.clock,
        )
        self.gateways = GatewaysHeard(self.attempts, self._answers, self.clock)

    def _send(self, gateway: GatewayId, frames: Sequence[Frame]) -> None:
        self.sent += [(gateway, frame) for frame in frames]

    async def _answers(self, _timeout_s: float) -> bool:
        return self.bus_answers

    def heard(self, gateway: GatewayId, *attempts: str, partial: bool = False) -> None:
        self.gateways.heard(
            Present(gateway=gateway, instance="ins_test", attempts=list(attempts), partial=partial)
        )

    async def run(self, name: str, gateway: GatewayId = HERE) -> None:
        self.attempts.run(run_attempt(name, {"messages": []}, gateway=gateway))
        await settled()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node()
    yield made
    await made.attempts.close()


async def test_an_attempt_that_never_came_is_told_out_of_number(node: Node) -> None:
    await node.run("req_1.1")
    node.sent.clear()
    node.heard(HERE, "req_1.1", "req_2.1")
    await settled()
    assert [(gateway, frame.attempt, frame.number) for gateway, frame in node.sent] == [
        (HERE, "req_2.1", OUT_OF_NUMBER)
    ]
    assert node.attempts.running == 1


async def test_what_a_gateway_follows_no_more_is_ended_and_what_others_follow_stays(node: Node) -> None:
    await node.run("req_1.1")
    await node.run("req_2.1")
    await node.run("req_3.1", OTHER)
    node.heard(HERE, partial=True)
    await settled()
    assert node.attempts.running == 3
    node.heard(HERE, "req_2.1")
    await settled()
    assert node.attempts.running == 2
    assert [(each.attempt, each.outcome) for each in node.counts.to_report(0.0)] == [("req_1.1", "cancelled")]


async def looks(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "LOOK_EACH_S", 0.0)
    task = asyncio.get_running_loop().create_task(node.gateways.run())
    await settled()
    await settled()
    task.cancel()
    await asyncio.wait({task})


async def test_engines_stop_for_a_gateway_that_is_silent_on_a_bus_that_answers(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.run("req_1.1")
    await node.run("req_2.1", OTHER)
    node.heard(HERE, "req_1.1")
    node.heard(OTHER, "req_2.1")
    node.clock.advance(SILENT_AFTER_S - 0.5)
    node.heard(OTHER, "req_2.1")
    await looks(node, monkeypatch)
    assert node.attempts.running == 2
    node.clock.advance(1.0)
    await looks(node, monkeypatch)
    assert node.attempts.gateways() == {OTHER}
    assert [(each.attempt, each.outcome, each.completion_tokens) for each in node.counts.to_report(0.0)] == [
        ("req_1.1", "gateway_lost", 1)
    ], "what was made is kept for the books"


async def test_on_a_bus_that_is_away_silence_says_nothing_of_a_gateway(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.run("req_1.1")
    node.heard(HERE, "req_1.1")
    node.bus_answers = False
    node.clock.advance(60.0)
    await looks(node, monkeypatch)
    assert node.attempts.running == 1


async def test_a_gateway_that_never_said_that_it_is_there_is_not_judged(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of an older version."""
    await node.run("req_1.1")
    node.clock.advance(60.0)
    await looks(node, monkeypatch)
    assert node.attempts.running == 1


async def test_silence_of_a_gateway_is_not_held_against_one_that_was_heard_in_the_meantime(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """We were stopped ourselves: its words waited in the connection, and the bus's answer behind them."""
    await node.run("req_1.1")
    node.heard(HERE, "req_1.1")
    node.clock.advance(60.0)

    async def answers(_timeout_s: float) -> bool:
        node.heard(HERE, "req_1.1")
        return True

    monkeypatch.setattr(node.gateways, "_bus_answers", answers)
    await looks(node, monkeypatch)
    assert node.attempts.running == 1
