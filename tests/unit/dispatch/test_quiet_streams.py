"""A stream with nothing to say is kept alive by comments, wherever it waits."""

import asyncio

import pytest

from panal.core.errors import QueueDeadline
from panal.core.nodes import NodeClass
from panal.dispatch.limits import Limits
from panal.protocol.messages import Event
from tests.support.path import ListSink, Path

COMMENT = b": waiting\n"
LIMITS = Limits(comment_each_s=10.0, recovery_s_max=1.0)


def pass_time(path: Path, seconds: float) -> None:
    path.clock.advance(seconds)
    path.beat_all()


async def waiting_in_the_queue(path: Path, **changes: object) -> "tuple[asyncio.Task[bytes], ListSink]":
    """The only slots are taken by others, whom this gateway does not know."""
    for node in path.nodes:
        node.beat(slots=1, running=1)
    await path.settled()
    task, sink = path.begin(**changes)
    await path.settled()
    return task, sink


async def test_p03_a_stream_that_waits_in_the_queue_begins_with_a_comment_after_a_while() -> None:
    path = await Path(limits=LIMITS).start(1)
    task, sink = await waiting_in_the_queue(path)
    path.clock.advance(9.9)
    path.watch.look()
    assert not sink.started
    path.clock.advance(0.2)
    path.watch.look()
    assert sink.data == COMMENT
    path.watch.look()
    assert sink.data == COMMENT
    path.clock.advance(10.0)
    path.watch.look()
    assert sink.data == 2 * COMMENT
    path.nodes[0].beat()
    node, run = await path.runner()
    node.tell(run, "all")
    node.finish(run)
    await task
    assert sink.data == 2 * COMMENT + b"all"
    assert not path.dispatcher.waiting


async def test_a_wait_in_vain_is_a_plain_refusal_only_while_nothing_was_sent() -> None:
    path = await Path(limits=LIMITS, queue_wait_s_max=0.05).start(1)
    task, sink = await waiting_in_the_queue(path)
    with pytest.raises(QueueDeadline):
        await task
    assert not sink.started
    path = await Path(limits=LIMITS, queue_wait_s_max=0.05).start(1)
    task, sink = await waiting_in_the_queue(path)
    path.clock.advance(10.1)
    path.watch.look()
    with pytest.raises(QueueDeadline):
        await task
    assert sink.started
    assert not path.dispatcher.waiting


async def test_an_answer_in_one_piece_gets_no_comments() -> None:
    path = await Path(limits=LIMITS).start(1)
    task, sink = await waiting_in_the_queue(path, stream=False)
    path.clock.advance(30.0)
    path.watch.look()
    assert not sink.started
    sink.leave()
    with pytest.raises(Exception, match="left"):
        await task


async def test_p06_a_client_that_leaves_the_queue_is_never_served() -> None:
    path = await Path(limits=LIMITS).start(1)
    task, sink = await waiting_in_the_queue(path)
    sink.leave()
    with pytest.raises(Exception, match="left"):
        await task
    path.nodes[0].beat()
    await path.settled()
    assert path.nodes[0].runs.empty()
    assert not path.dispatcher.waiting
    assert path.queue_lengths[-1] == 0


async def test_an_answer_that_a_desk_holds_back_is_kept_alive_by_comments() -> None:
    path = await Path(limits=LIMITS).start(1)
    path.fleet.set_facts([path.facts(path.nodes[0], node_class=NodeClass.DESKTOP)])
    task, sink = path.begin(resumable=False)
    node, run = await path.runner()
    assert run.hold and run.hold_bytes_max == LIMITS.hold_bytes_max
    for _ in range(22):
        pass_time(path, 0.5)
        node.send(run, Event())
        await path.settled()
        path.watch.look()
    assert sink.data == COMMENT
    node.tell(run, "all")
    node.finish(run)
    await task
    assert sink.data == COMMENT + b"all"
