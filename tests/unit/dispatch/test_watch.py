"""What becomes of answers whose node says nothing."""

import pytest

from panal.core.errors import (
    NodeError,
)
from panal.core.nodes import Membership
from panal.dispatch.limits import Limits
from panal.protocol.messages import Event, WireError
from tests.support.path import Path


async def test_p21_a_silent_node_is_left_when_it_is_not_heard_of_any_more() -> None:
    path = await Path().start(2)
    task, sink = path.begin()
    first, run = await path.runner()
    first.tell(run, "a")
    await path.settled()
    second = next(node for node in path.nodes if node is not first)
    for _ in range(12):
        path.clock.advance(0.25)
        second.beat()
        await path.settled()
        path.watch.look()
    again = await second.run()
    second.tell(again, "b")
    second.finish(again)
    await task
    assert sink.data == b"ab"
    first.beat()
    first.tell(run, "late")
    await path.settled()
    assert sink.data == b"ab"


async def test_a_node_that_left_the_bus_is_left_at_the_next_look_and_not_after_silence() -> None:
    path = await Path().start(2)
    task, sink = path.begin()
    first, run = await path.runner()
    first.tell(run, "a")
    await path.settled()
    second = next(node for node in path.nodes if node is not first)
    path.broker.cut(first.key)
    path.clock.advance(0.25)
    second.beat()
    await path.settled()
    path.watch.look()
    again = await second.run()
    assert again.emitted is not None and again.emitted.text == "a"
    second.tell(again, "b")
    second.finish(again)
    await task
    assert sink.data == b"ab"


async def test_a_lone_node_that_left_the_bus_for_a_moment_goes_on_with_its_answer() -> None:
    path = await Path().start(1)
    task, sink = path.begin()
    node, run = await path.runner()
    node.tell(run, "a")
    await path.settled()
    path.broker.cut(node.key)
    for _ in range(2):
        path.clock.advance(0.25)
        path.watch.look()
        await path.settled()
    path.broker.restore(node.key)
    node.tell(run, "b")
    node.finish(run)
    await task
    assert sink.data == b"ab"


async def test_after_a_break_of_the_bus_a_node_that_is_not_back_yet_is_not_given_up() -> None:
    path = await Path().start(2)
    path.settling = True
    task, sink = path.begin()
    first, run = await path.runner()
    first.tell(run, "a")
    await path.settled()
    path.broker.cut(first.key)
    path.clock.advance(0.25)
    path.watch.look()
    await path.settled()
    path.broker.restore(first.key)
    first.tell(run, "b")
    first.finish(run)
    await task
    assert sink.data == b"ab"


async def test_an_attempt_that_nobody_heard_costs_nothing_and_its_node_may_be_tried_again() -> None:
    path = await Path(stale_patience_s=5.0).start(1)
    node = path.nodes[0]
    path.broker.cut(node.key)
    task, sink = path.begin()
    await path.settled()
    path.broker.restore(node.key)
    node.beat()
    run = await node.run()
    node.tell(run, "a")
    node.finish(run)
    await task
    assert sink.data == b"a"
    assert [log.outcome for log in path.books.finished[0].attempts] == ["refused", "complete"]


async def test_a_node_that_was_started_anew_is_left_at_once() -> None:
    path = await Path().start(2)
    task, _sink = path.begin()
    first, run = await path.runner()
    first.tell(run, "a")
    await path.settled()
    path.broker.cut(first.key)
    path.clock.advance(0.25)
    path.fleet.absent(first.key)
    path.broker.restore(first.key)
    first.instance = "ins_new"
    path.beat_all()
    await path.settled()
    path.watch.look()
    second, again = await path.runner()
    second.tell(again, "b")
    second.finish(again)
    await task
    assert path.fleet.fresh(first.key)


async def test_a_slow_but_living_node_is_not_given_up() -> None:
    path = await Path().start(2)
    task, sink = path.begin()
    node, run = await path.runner()
    node.tell(run, "a")
    for _ in range(60):
        path.clock.advance(0.25)
        path.beat_all()
        await path.settled()
        path.watch.look()
    node.tell(run, "b")
    node.finish(run)
    await task
    assert sink.data.replace(b": waiting\n", b"") == b"ab"


async def test_a_slow_start_is_moved_only_to_a_node_that_takes_it() -> None:
    path = await Path().start(2)
    path.hedges.saved = 1.0
    task, sink = path.begin()
    node, run = await path.runner()
    other = next(each for each in path.nodes if each is not node)
    path.fleet.set_facts([path.facts(node), path.facts(other, membership=Membership.CORDONED)])
    for _ in range(20):
        path.clock.advance(0.25)
        path.beat_all()
        await path.settled()
        path.watch.look()
    assert path.dispatcher.running.keys() == {run.attempt}
    path.fleet.set_facts([path.facts(node), path.facts(other)])
    path.clock.advance(0.25)
    path.beat_all()
    await path.settled()
    path.watch.look()
    again = await other.run()
    other.tell(again, "quick")
    other.finish(again)
    await task
    assert sink.data == b"quick"


async def test_a_client_that_takes_its_time_is_left_to_its_connection() -> None:
    """Full for minutes is no fault: whether anything moves is seen where the bytes are."""
    path = await Path().start(1)
    task, sink = path.begin()
    node, run = await path.runner()
    sink.full = True
    node.tell(run, "a")
    for _ in range(480):
        path.clock.advance(0.25)
        path.beat_all()
        await path.settled()
        path.watch.look()
    assert not task.done()
    sink.full = False
    assert sink.on_drained is not None
    sink.on_drained()
    node.tell(run, "b")
    node.finish(run)
    await task
    assert sink.data == b"ab"


async def test_p03_silence_is_filled_with_comments_that_are_no_events() -> None:
    path = await Path().start(1)
    task, sink = path.begin()
    node, run = await path.runner()
    for _ in range(45):
        path.clock.advance(0.25)
        path.beat_all()
        await path.settled()
        path.watch.look()
    assert sink.data == b": waiting\n"
    node.tell(run, "a")
    node.finish(run)
    await task


async def test_p18_a_node_that_never_answers_is_left_at_the_limit() -> None:
    path = await Path(limits=Limits(first_token_s_max=5.0, recovery_s_max=0.01)).start(2)
    task, _sink = path.begin()
    first, _run = await path.runner()
    for _ in range(26):
        path.clock.advance(0.25)
        path.beat_all()
        await path.settled()
        path.watch.look()
    second, _again = await path.runner()
    assert second is not first
    for _ in range(26):
        path.clock.advance(0.25)
        path.beat_all()
        await path.settled()
        path.watch.look()
    with pytest.raises(NodeError, match="first_token") as timeout:
        await task
    assert timeout.value.code == "timeout"


@pytest.mark.parametrize("what", ["a call", "no twin"])
async def test_an_answer_that_nobody_could_continue_waits_for_its_node_to_come_back(what: str) -> None:
    path = await Path().start(2)
    if what == "no twin":
        for number, node in enumerate(path.nodes):
            node.beat(twin=f"twin {number}")
        await path.settled()
    task, sink = path.begin()
    first, run = await path.runner()
    first.send(run, Event(data=b"a", text="a", tokens=1, token_ids=[1], opaque=what == "a call"))
    await path.settled()
    path.broker.cut(first.key)
    path.clock.advance(0.25)
    for number, node in enumerate(path.nodes):
        if node is not first:
            node.beat(twin=f"twin {number}" if what == "no twin" else "twin")
    await path.settled()
    path.watch.look()
    await path.settled()
    assert not task.done() and all(node.runs.empty() for node in path.nodes)
    path.broker.restore(first.key)
    first.tell(run, "b")
    first.finish(run)
    await task
    assert sink.data == b"ab"


async def test_an_answer_is_not_taken_from_its_node_for_one_that_failed_it_before() -> None:
    path = await Path().start(2)
    task, sink = path.begin()
    first, run = await path.runner()
    first.tell(run, "a")
    first.send(run, Event(error=WireError(kind="failed", message="crash")))
    second, run_on = await path.runner()
    assert second is not first
    second.tell(run_on, "b")
    await path.settled()
    path.broker.cut(second.key)
    path.clock.advance(0.25)
    first.beat()
    await path.settled()
    path.watch.look()
    await path.settled()
    path.broker.restore(second.key)
    second.tell(run_on, "c")
    second.finish(run_on)
    await task
    assert sink.data == b"abc"
