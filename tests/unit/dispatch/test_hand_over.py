"""A node that says it leaves speaks on until another one has read the answer so far."""

import asyncio

import pytest

from panal.core.errors import AnswerCut, PanalError
from panal.dispatch.limits import Limits
from panal.ledger.values import AttemptOutcome
from panal.protocol.messages import Event, RunAttempt, WireError
from tests.support.path import ListSink, Path, ScriptedNode, text_event

LEAVING = Event(error=WireError(kind="leaving", message="its owner is back"))


async def begun(
    path: Path, **changes: object
) -> "tuple[asyncio.Task[bytes], ListSink, ScriptedNode, RunAttempt]":
    task, sink = path.begin(**changes)
    node, run = await path.runner()
    node.tell(run, "one ")
    node.send(run, Event(leaving=True))
    return task, sink, node, run


async def test_the_old_node_speaks_until_the_new_one_has_read_the_answer() -> None:
    path = await Path().start(2)
    task, sink, first, run = await begun(path)
    second, warm_up = await path.runner()
    assert warm_up.emitted is not None and warm_up.emitted.text == "one "
    first.tell(run, "two ")
    await path.settled()
    assert first.cancels == []
    second.tell(warm_up, "thrown away")
    _, run_on = await path.runner()
    assert [cancel.attempt for cancel in first.cancels] == [run.attempt]
    assert [cancel.attempt for cancel in second.cancels] == [warm_up.attempt]
    assert run_on.emitted is not None
    assert run_on.emitted.text == "one two "
    assert run_on.emitted.token_ids == list(b"one two ")
    first.tell(run, "late")
    second.tell(warm_up, "late")
    second.tell(run_on, "three")
    second.finish(run_on)
    await task
    assert sink.data == b"one two three"
    finished = path.books.finished[0]
    assert [log.outcome for log in finished.attempts] == [
        AttemptOutcome.HANDED_OVER,
        AttemptOutcome.CANCELLED,
        AttemptOutcome.COMPLETE,
    ]
    assert [log.made().delivered_tokens for log in finished.attempts] == [2, 0, 1]
    assert [log.made().completion_tokens for log in finished.attempts] == [2, 1, 1]
    assert finished.resumes == sink.resumes == 1
    assert finished.attempts[2].goes_on_after == "node_leaving"
    assert all(own.running == 0 for _replica, own in path.fleet.candidates("m"))


async def test_a_short_rest_is_finished_by_the_leaving_node() -> None:
    path = await Path().start(2)
    task, sink, first, run = await begun(path)
    second, warm_up = await path.runner()
    first.tell(run, "two")
    first.finish(run)
    assert await task == b"[end]"
    await path.settled()
    assert sink.data == b"one two"
    assert sink.resumes == 0
    assert [cancel.attempt for cancel in second.cancels] == [warm_up.attempt]
    assert first.cancels == []
    assert all(own.running == 0 for _replica, own in path.fleet.candidates("m"))


async def test_when_the_grace_is_over_first_the_answer_waits_for_the_warm_node() -> None:
    path = await Path().start(2)
    task, sink, first, run = await begun(path)
    second, warm_up = await path.runner()
    first.send(run, text_event("two "), LEAVING)
    await path.settled()
    assert second.cancels == []
    second.tell(warm_up, "x")
    _, run_on = await path.runner()
    assert run_on.emitted is not None and run_on.emitted.text == "one two "
    second.tell(run_on, "three")
    second.finish(run_on)
    await task
    assert sink.data == b"one two three"


async def test_a_warm_up_that_fails_is_tried_on_another_node() -> None:
    path = await Path().start(3)
    task, sink, first, run = await begun(path)
    second, warm_up = await path.runner()
    second.send(warm_up, Event(error=WireError(kind="failed", message="crash")))
    first.tell(run, "two ")
    third, again = await path.runner()
    assert third not in (first, second)
    assert first.cancels == []
    first.send(run, LEAVING)
    third.tell(again, "x")
    _, run_on = await path.runner()
    assert run_on.emitted is not None and run_on.emitted.text == "one two "
    third.tell(run_on, "three")
    third.finish(run_on)
    await task
    assert sink.data == b"one two three"


async def test_what_cannot_go_on_may_end_within_the_grace() -> None:
    path = await Path().start(2)
    task, sink, first, run = await begun(path, resumable=False)
    await path.settled()
    assert path.nodes[1].runs.empty()
    first.finish(run)
    assert await task == b"[end]"
    task, sink, first, run = await begun(path, resumable=False)
    first.send(run, LEAVING)
    with pytest.raises(AnswerCut):
        await task
    assert sink.data == b"one "


async def test_what_has_not_begun_moves_at_once() -> None:
    path = await Path().start(2)
    task, sink = path.begin()
    first, run = await path.runner()
    first.send(run, Event(leaving=True))
    second, again = await path.runner()
    assert again.emitted is None
    assert [cancel.attempt for cancel in first.cancels] == [run.attempt]
    second.tell(again, "all")
    second.finish(again)
    await task
    assert sink.data == b"all"
    assert sink.resumes == 0


async def test_a_client_that_leaves_during_a_hand_over_ends_both() -> None:
    path = await Path().start(2)
    task, sink, first, run = await begun(path)
    second, warm_up = await path.runner()
    sink.leave()
    with pytest.raises(Exception, match="left"):
        await task
    await path.settled()
    assert [cancel.attempt for cancel in first.cancels] == [run.attempt]
    assert [cancel.attempt for cancel in second.cancels] == [warm_up.attempt]
    assert all(own.running == 0 for _replica, own in path.fleet.candidates("m"))


async def test_a_hand_over_without_a_free_node_waits_no_longer_than_a_broken_answer() -> None:
    path = await Path(limits=Limits(recovery_s_max=0.05)).start(1)
    task, sink, first, run = await begun(path)
    await asyncio.sleep(0.1)
    first.send(run, text_event("two "), LEAVING)
    with pytest.raises(AnswerCut):
        await task
    assert sink.data == b"one two "


async def test_a_node_that_falls_silent_while_it_reads_is_not_waited_for() -> None:
    path = await Path().start(3)
    task, sink, first, run = await begun(path)
    second, warm_up = await path.runner()
    first.send(run, LEAVING)
    await path.settled()
    third = next(node for node in path.nodes if node not in (first, second))
    for _ in range(12):
        path.clock.advance(0.25)
        first.beat()
        third.beat()
        await path.settled()
        path.watch.look()
    again = await third.run()
    assert [cancel.attempt for cancel in second.cancels] == [warm_up.attempt]
    third.tell(again, "x")
    run_on = await third.run()
    third.tell(run_on, "two")
    third.finish(run_on)
    await task
    assert sink.data == b"one two"


@pytest.mark.parametrize("why", ["gone", "too late"])
async def test_a_request_that_is_over_ends_while_the_next_node_still_reads(why: str) -> None:
    path = await Path().start(3)
    task, sink, first, run = await begun(path)
    second, warm_up = await path.runner()
    first.send(run, LEAVING)
    await path.settled()
    if why == "gone":
        sink.leave()
    else:
        path.clock.advance(600.0)
        path.watch.look()
    with pytest.raises(PanalError):
        await asyncio.wait_for(asyncio.shield(task), 1.0)
    assert [cancel.attempt for cancel in second.cancels] == [warm_up.attempt]
    assert all(node.runs.empty() for node in path.nodes)
    assert all(own.running == 0 for _replica, own in path.fleet.candidates("m"))


async def test_a_wait_for_the_node_that_reads_is_filled_with_comments() -> None:
    path = await Path(limits=Limits(comment_each_s=1.0)).start(2)
    task, sink, first, run = await begun(path)
    second, warm_up = await path.runner()
    first.send(run, LEAVING)
    await path.settled()
    for _ in range(12):
        path.clock.advance(0.25)
        second.beat()
        await path.settled()
        path.watch.look()
    assert sink.data == b"one " + b": waiting\n" * 3
    second.tell(warm_up, "x")
    _, run_on = await path.runner()
    second.tell(run_on, "two")
    second.finish(run_on)
    await task
