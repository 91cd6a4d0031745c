"""What a gateway's own sight of the fleet is worth after an outage of the bus or of itself."""

import asyncio

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import ModelResting, NodeError, NotAllowed
from panal.core.nodes import DataClass
from panal.dispatch.bus_sight import AWAY_S_MAX, OVERSLEPT_S, SETTLE_S, BusSight, Sight
from tests.support.path import Path, principal


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_bus_that_is_away_excuses_nodes_for_a_while_only(clock: ManualClock) -> None:
    sight = BusSight(clock)
    assert (sight.now, sight.excuses, sight.settling) == (Sight.CLEAR, False, False)
    sight.connection(False)
    clock.advance(AWAY_S_MAX - 1.0)
    sight.connection(False)
    assert (sight.now, sight.excuses) == (Sight.AWAY, True)
    clock.advance(2.0)
    assert (sight.now, sight.excuses) == (Sight.AWAY, False)


def test_after_an_outage_there_is_doubt_until_somebody_saw_to_it(clock: ManualClock) -> None:
    sight = BusSight(clock)
    asked: list[str] = []
    sight.on_doubt = lambda: asked.append("see to it")
    sight.connection(False)
    sight.connection(True)
    assert asked and sight.now is Sight.DOUBTFUL
    clock.advance(60.0)
    assert sight.excuses, "as long as it is doubtful"
    sight.trust()
    assert (sight.now, sight.settling, sight.excuses) == (Sight.CLEAR, True, True)
    clock.advance(SETTLE_S + 0.1)
    assert (sight.settling, sight.excuses) == (False, False)


def test_a_process_that_was_held_up_doubts_before_its_watch_comes_round(clock: ManualClock) -> None:
    sight = BusSight(clock)
    asked: list[str] = []
    sight.on_doubt = lambda: asked.append("see to it")
    sight.watched()
    clock.advance(OVERSLEPT_S + 0.1)
    assert sight.now is Sight.DOUBTFUL and not asked
    sight.watched()
    assert sight.now is Sight.DOUBTFUL and asked
    sight.trust()
    assert sight.now is Sight.CLEAR


async def test_p23_a_heartbeat_that_waited_while_we_slept_is_no_sign_of_life() -> None:
    path = await Path(stale_patience_s=30.0).start(2)
    dead, alive = path.nodes
    path.fleet.sight.watched()
    path.clock.advance(10.0)
    dead.beat()  # sent long ago, delivered now
    await path.settled()
    task, sink = path.begin()
    await path.settled()
    assert dead.runs.empty() and alive.runs.empty(), "it is not known who is there"
    path.fleet.sight.watched()
    path.fleet.hear_anew()
    await path.settled()
    assert dead.runs.empty() and alive.runs.empty()
    alive.beat()
    run = await alive.run()
    alive.tell(run, "here")
    alive.finish(run)
    await task
    assert sink.data == b"here" and dead.runs.empty()


async def test_answers_wait_while_the_bus_is_away_and_go_on_when_it_is_back() -> None:
    path = await Path().start(1)
    node = path.nodes[0]
    task, sink = path.begin()
    _, run = await path.runner()
    node.tell(run, "a")
    await path.settled()
    path.fleet.sight.connection(False)
    for _ in range(30):
        path.clock.advance(0.25)
        path.watch.look()
        await path.settled()
    assert not task.done() and path.dispatcher.running
    path.fleet.sight.connection(True)
    path.fleet.hear_anew()
    node.beat()
    node.tell(run, "b")
    node.finish(run)
    await task
    assert sink.data == b"ab"


async def test_answers_end_with_an_error_when_the_bus_stays_away() -> None:
    path = await Path().start(1)
    task, _sink = path.begin()
    _, run = await path.runner()
    path.nodes[0].tell(run, "a")
    await path.settled()
    path.fleet.sight.connection(False)
    for _ in range(60):
        path.clock.advance(0.25)
        path.watch.look()
        await path.settled()
    assert not path.dispatcher.running
    with pytest.raises(Exception, match="broke off") as caught:
        async with asyncio.timeout(10):
            await task
    assert not isinstance(caught.value, NodeError)


async def test_what_the_bus_lost_is_asked_of_the_same_node_again() -> None:
    """A gap says nothing of the replica, which may be the only one."""
    path = await Path().start(1)
    node = path.nodes[0]
    task, sink = path.begin()
    _, run = await path.runner()
    node.tell(run, "a")
    await path.settled()
    node.send(run, skip=3)
    again = await node.run()
    assert again.attempt != run.attempt and again.emitted is not None and again.emitted.text == "a"
    node.tell(again, "b")
    node.finish(again)
    await task
    assert sink.data == b"ab"
    assert [each.attempt for each in node.cancels] == [run.attempt], "the first try is fenced off"


async def test_a_new_request_waits_for_a_node_that_loads_its_model() -> None:
    path = await Path().start(1)
    node = path.nodes[0]
    node.beat(state="starting", healthy=False)
    await path.settled()
    task, sink = path.begin()
    await path.settled()
    assert not task.done() and node.runs.empty()
    node.beat()
    run = await node.run()
    node.tell(run, "loaded")
    node.finish(run)
    await task
    assert sink.data == b"loaded"


async def test_a_faulty_node_is_not_waited_for() -> None:
    path = await Path().start(1)
    path.nodes[0].beat(state="degraded", healthy=False)
    await path.settled()
    task, _sink = path.begin()
    with pytest.raises(ModelResting):
        await task


async def test_a_missing_node_makes_no_refusal_for_good() -> None:
    """Who may see the data is not here now: that is no reason to tell the caller to give up."""
    path = await Path().start(2)
    able, other = path.nodes
    path.allowed = lambda request, replica: replica.node_id == able.node_id
    path.clock.advance(2.0)
    other.beat()
    await path.settled()
    task, _sink = path.begin(principal=principal(DataClass.RESTRICTED))
    with pytest.raises(ModelResting):
        await task
    able.beat()
    path.allowed = lambda request, replica: False
    await path.settled()
    task, _sink = path.begin()
    with pytest.raises(NotAllowed):
        await task
