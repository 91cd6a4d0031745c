"""The request's own time: in the queue, before and after the first byte, and nobody else's fault."""

import asyncio

import pytest

from panal.core.errors import DeadlineExceeded, QueueDeadline
from panal.ledger.values import AttemptOutcome, Outcome
from panal.protocol.messages import Event, WireError
from tests.support.path import LIMIT_S, Path

OVER = Event(error=WireError(kind="timeout", code="total", message="over"))


async def test_a_deadline_in_the_queue_is_no_long_wait() -> None:
    path = await Path(queue_wait_s_max=0.2).start(1)
    path.nodes[0].beat(slots=1)
    await path.settled()
    running, _ = path.begin()
    await path.runner()
    now_s = path.clock.monotonic_seconds()
    hurried, _ = path.begin(deadline_monotonic_s=now_s + 0.05)
    patient, _ = path.begin(deadline_monotonic_s=now_s + 60.0)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(DeadlineExceeded):
            await hurried
        with pytest.raises(QueueDeadline):
            await patient
    assert path.nodes[0].runs.empty()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_is_over_on_arrival_reaches_no_node() -> None:
    path = await Path().start(1)
    task, _sink = path.begin(deadline_monotonic_s=path.clock.monotonic_seconds())
    with pytest.raises(DeadlineExceeded):
        await task
    assert path.nodes[0].runs.empty()


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("finder", ["agent", "gateway"])
async def test_the_end_is_the_same_whoever_finds_it_and_no_other_node_is_tried(
    finder: str, sent: bool
) -> None:
    path = await Path().start(2)
    task, sink = path.begin(deadline_monotonic_s=path.clock.monotonic_seconds() + 5.0)
    node, run = await path.runner()
    if sent:
        node.tell(run, "a")
    await path.settled()
    path.clock.advance(5.0)
    path.beat_all()
    await path.settled()
    if finder == "agent":
        node.send(run, OVER)
    else:
        path.watch.look()
    with pytest.raises(DeadlineExceeded):
        await task
    assert sink.data == (b"a" if sent else b"")
    assert all(each.runs.empty() for each in path.nodes)
    (finished,) = path.books.finished
    assert finished.outcome is (Outcome.CUT if sent else Outcome.FAILED)
    assert [log.outcome for log in finished.attempts] == [AttemptOutcome.TIMEOUT]


@pytest.mark.parametrize("finder", ["agent", "gateway"])
async def test_p25_a_client_in_a_hurry_spoils_no_replica(finder: str) -> None:
    path = await Path().start(1)
    task, _sink = path.begin(deadline_monotonic_s=path.clock.monotonic_seconds() + 1.0)
    node, run = await path.runner()
    path.clock.advance(1.0)
    if finder == "agent":
        node.send(run, OVER)
    else:
        path.watch.look()
    with pytest.raises(DeadlineExceeded):
        await task
    own = [own for _replica, own in path.fleet.candidates("m")]
    assert [each.inhibited_until_s for each in own] == [0.0]
