"""Who gets a replica, who waits, who is refused."""

import asyncio

import pytest

from panal.core.errors import (
    ClientGone,
    ModelNotFound,
    ModelResting,
    NotAllowed,
    QueueFull,
)
from panal.core.nodes import Membership
from tests.support.path import LIMIT_S, Path


async def test_p06_a_client_that_leaves_the_queue_never_reaches_an_engine() -> None:
    path = await Path().start(1)
    path.nodes[0].beat(slots=1)
    await path.settled()
    busy, _ = path.begin()
    node, run = await path.runner()
    waiting, sink = path.begin()
    await path.settled()
    assert path.queue_lengths[-1] == 1
    sink.leave()
    with pytest.raises(ClientGone):
        await waiting
    assert path.queue_lengths[-1] == 0
    node.finish(run)
    await busy
    assert node.runs.empty()


async def test_p13_a_resting_model_is_not_an_unknown_one() -> None:
    path = await Path().start(1)
    path.fleet.set_models(["m", "resting"])
    for model, error in (("never", ModelNotFound), ("resting", ModelResting)):
        task, _sink = path.begin(model=model)
        with pytest.raises(error):
            await task
    path.clock.advance(2.0)
    task, _sink = path.begin()
    with pytest.raises(ModelResting) as resting:
        await task
    assert resting.value.retry_after_s


async def test_a_late_heartbeat_delays_a_request_and_does_not_refuse_it() -> None:
    path = await Path(stale_patience_s=LIMIT_S).start(1)
    path.clock.advance(2.0)
    task, sink = path.begin()
    await path.settled()
    assert path.queue_lengths[-1] == 1
    path.nodes[0].beat()
    node, run = await path.runner()
    node.tell(run, "late")
    node.finish(run)
    await task
    assert sink.data == b"late"


async def test_p19_who_waited_for_a_load_in_vain_hears_that_the_model_rests() -> None:
    """The whole time of the queue, but no queue was the reason."""
    path = await Path(queue_wait_s_max=0.05).start(1)
    path.nodes[0].beat(state="starting", healthy=False)
    await path.settled()
    task, _sink = path.begin()
    with pytest.raises(ModelResting):
        await task


async def test_a_request_does_not_wait_behind_those_for_another_model() -> None:
    path = await Path().start(2)
    busy, idle = path.nodes
    busy.beat(slots=1)
    idle.beat(model="other")
    await path.settled()
    first, _ = path.begin()
    await busy.run()
    waiting, _ = path.begin()
    await path.settled()
    other, _ = path.begin(model="other")
    run = await idle.run()
    idle.finish(run)
    await other
    for task in (first, waiting):
        task.cancel()
    await asyncio.gather(first, waiting, return_exceptions=True)


async def test_data_goes_to_no_node_that_may_not_see_it() -> None:
    path = await Path().start(2)
    path.allowed = lambda request, replica: False
    task, _sink = path.begin()
    with pytest.raises(NotAllowed):
        await task
    assert all(node.runs.empty() for node in path.nodes)


async def test_a_full_queue_answers_at_once() -> None:
    path = await Path(queue_length_max=1).start(1)
    path.nodes[0].beat(slots=1)
    await path.settled()
    running, _ = path.begin()
    await path.runner()
    waiting, _ = path.begin()
    await path.settled()
    refused, _ = path.begin()
    with pytest.raises(QueueFull):
        await refused
    for task in (running, waiting):
        task.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    assert path.queue_lengths[-1] == 0
    assert len(path.books.finished) == 3


async def test_a_cordoned_node_gets_no_new_work_but_ends_its_answer() -> None:
    path = await Path().start(1)
    task, sink = path.begin()
    node, run = await path.runner()
    path.fleet.set_facts([path.facts(node, membership=Membership.CORDONED)])
    other, _ = path.begin()
    with pytest.raises(ModelResting):
        await other
    node.tell(run, "goes on")
    node.finish(run)
    await task
    assert sink.data == b"goes on"
