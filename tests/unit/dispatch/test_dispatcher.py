"""The path of one request, with nodes that do exactly what the test says."""

import asyncio

import pytest

from panal.core.errors import (
    AnswerCut,
    ClientGone,
    EngineFailed,
    EngineRefused,
)
from panal.dispatch.limits import Limits
from panal.ledger.values import AttemptOutcome, Outcome
from panal.protocol.messages import Event, TokenUsage, WireError
from panal.scheduling.replicas import INHIBITED_S
from tests.support.path import Path, text_event


async def test_relays_an_answer_and_holds_its_last_bytes_back() -> None:
    path = await Path().start(1)
    task, sink = path.begin()
    node, run = await path.runner()
    node.tell(run, "one ")
    node.tell(run, "two")
    node.finish(run)
    assert await task == b"[end]"
    assert sink.data == b"one two"
    finished = path.books.finished[0]
    assert finished.outcome is Outcome.COMPLETE
    assert (finished.shown.prompt_tokens, finished.shown.completion_tokens) == (5, 3)
    assert path.bookings._fleet.candidates("m")[0][1].running == 0


async def test_a_node_that_fails_before_the_first_byte_costs_the_client_nothing() -> None:
    path = await Path().start(2)
    task, sink = path.begin()
    first, run = await path.runner()
    first.send(run, Event(error=WireError(kind="failed", message="crash")))
    second, again = await path.runner()
    assert second is not first
    assert again.attempt == "req_1.2"
    assert again.emitted is None
    second.tell(again, "all")
    second.finish(again)
    await task
    assert sink.data == b"all"
    assert [log.outcome for log in path.books.finished[0].attempts] == [
        AttemptOutcome.FAILED,
        AttemptOutcome.COMPLETE,
    ]


async def test_a_broken_answer_goes_on_elsewhere_from_its_last_token() -> None:
    path = await Path().start(2)
    task, sink = path.begin()
    first, run = await path.runner()
    first.send(run, Event(data=b"R", role=True))
    first.tell(run, "one ")
    first.tell(run, "two ")
    first.send(run, Event(error=WireError(kind="leaving", message="its owner is back")))
    second, again = await path.runner()
    assert again.emitted is not None
    assert again.emitted.text == "one two "
    assert again.emitted.token_ids == list(b"one two ")
    assert again.emitted.role_sent
    assert (again.response_id, again.created_utc_s) == (run.response_id, run.created_utc_s)
    first.tell(run, "late frames of the old node are dropped")
    second.tell(again, "three")
    second.finish(again)
    await task
    assert sink.data == b"Rone two three"
    assert [cancel.attempt for cancel in first.cancels] == [run.attempt]
    assert path.books.finished[0].attempts[0].outcome is AttemptOutcome.HANDED_OVER
    assert path.books.finished[0].attempts[0].tokens == 2


async def test_a_fresh_try_after_the_role_was_told_does_not_tell_it_again() -> None:
    path = await Path().start(2)
    task, sink = path.begin()
    first, run = await path.runner()
    first.send(run, Event(data=b"R", role=True))
    first.send(run, Event(error=WireError(kind="failed", message="crash")))
    second, again = await path.runner()
    assert again.emitted is not None
    assert (again.emitted.role_sent, again.emitted.text, again.emitted.token_ids) == (True, "", None)
    second.tell(again, "all")
    second.finish(again)
    await task
    assert sink.data == b"Rall"


async def test_a_whole_answer_in_pieces_reaches_the_client_at_once_and_only_whole() -> None:
    path = await Path().start(2)
    task, sink = path.begin(stream=False)
    first, run = await path.runner()
    first.send(run, Event(data=b'{"half', opaque=True))
    first.send(run, Event(error=WireError(kind="failed", message="crash")))
    second, again = await path.runner()
    second.send(again, Event(data=b'{"all":', opaque=True))
    second.send(again, Event(data=b"true}", finish="stop"))
    assert await task == b'{"all":true}'
    assert sink.data == b""


async def test_a_missing_frame_is_a_fault_and_never_ignored() -> None:
    path = await Path().start(2)
    task, sink = path.begin()
    first, run = await path.runner()
    first.tell(run, "a")
    first.send(run, text_event("c"), skip=1)
    second, again = await path.runner()
    assert again.emitted is not None and again.emitted.text == "a"
    second.tell(again, "b")
    second.finish(again)
    await task
    assert sink.data == b"ab"
    assert path.books.finished[0].attempts[0].outcome is AttemptOutcome.LOST


async def test_p01_a_cut_answer_without_another_replica_is_an_error_and_not_an_end() -> None:
    path = await Path(limits=Limits(recovery_s_max=0.01)).start(1)
    task, sink = path.begin()
    node, run = await path.runner()
    for text in ("a", "b", "c"):
        node.tell(run, text)
    node.send(run, Event(error=WireError(kind="failed", message="the engine closed the connection")))
    with pytest.raises(AnswerCut):
        await task
    assert sink.data == b"abc"
    assert path.books.finished[0].outcome is Outcome.CUT


async def test_p07_a_partial_answer_is_counted_as_far_as_it_was_sent() -> None:
    """The engine's early word on the prompt is not the count of the answer."""
    for stream in (True, False):
        path = await Path().start(1)
        task, sink = path.begin(stream=stream)
        node, run = await path.runner()
        early = TokenUsage(prompt_tokens=5, completion_tokens=1, cached_tokens=2)
        first = text_event("a") if stream else Event(text="a", tokens=1)
        first.usage = early
        node.send(run, first)
        node.send(run, text_event("b") if stream else Event(text="b", tokens=1))
        await path.settled()
        sink.leave()
        with pytest.raises(ClientGone):
            await task
        shown = path.books.finished[0].shown
        counted = (shown.prompt_tokens, shown.completion_tokens, shown.cached_tokens)
        assert counted == ((5, 2, 2) if stream else (0, 0, 0))


async def test_what_cannot_be_resumed_ends_with_an_explicit_error() -> None:
    path = await Path().start(2)
    task, _sink = path.begin(resumable=False)
    node, run = await path.runner()
    node.tell(run, "a")
    node.send(run, Event(error=WireError(kind="failed", message="crash")))
    with pytest.raises(AnswerCut, match="could not be continued"):
        await task


async def test_frames_of_a_node_that_was_not_assigned_do_not_count() -> None:
    path = await Path().start(2)
    task, sink = path.begin()
    node, run = await path.runner()
    other = next(each for each in path.nodes if each is not node)
    other.tell(run, "forged")
    await path.settled()
    node.tell(run, "true")
    node.finish(run)
    await task
    assert sink.data == b"true"


async def test_p25_the_clients_own_mistake_is_passed_on_and_retried_nowhere() -> None:
    path = await Path().start(2)
    for status in (400, 401, 404, 413, 422, 429):
        task, _sink = path.begin()
        node, run = await path.runner()
        error = WireError(kind="caller", message="too long", status=status, body=b'{"error":{}}')
        node.send(run, Event(error=error))
        with pytest.raises(EngineRefused) as refused:
            await task
        assert (refused.value.status, refused.value.body) == (status, b'{"error":{}}')
    task, _sink = path.begin()
    node, run = await path.runner()
    assert run.attempt.endswith(".1")
    node.finish(run)
    await task


@pytest.mark.parametrize("status", [0, -1, 200, 302, 500, 99_999])
async def test_a_status_that_is_no_clients_mistake_is_not_a_nodes_to_give(status: int) -> None:
    path = await Path().start(1)
    task, _sink = path.begin()
    node, run = await path.runner()
    node.send(run, Event(error=WireError(kind="caller", message="odd", status=status, body=b"{}")))
    with pytest.raises(EngineRefused) as refused:
        await task
    assert refused.value.status == 400


async def test_a_refusal_of_a_node_sends_the_request_elsewhere_and_costs_no_attempt() -> None:
    path = await Path().start(2)
    task, _sink = path.begin()
    first, run = await path.runner()
    first.send(run, Event(error=WireError(kind="refused", message="in use by its owner")))
    second, again = await path.runner()
    assert second is not first
    second.finish(again)
    await task
    assert path.books.finished[0].attempts[0].outcome is AttemptOutcome.REFUSED


async def test_a_refused_resume_goes_on_at_the_next_node_and_repeats_nothing() -> None:
    path = await Path().start(3)
    task, sink = path.begin()
    first, run = await path.runner()
    first.tell(run, "one ")
    first.send(run, Event(error=WireError(kind="leaving", message="its owner is back")))
    second, again = await path.runner()
    second.send(again, Event(error=WireError(kind="refused", message="in use by its owner")))
    third, last = await path.runner()
    assert last.emitted is not None and last.emitted.text == "one "
    third.tell(last, "two")
    third.finish(last)
    await task
    assert sink.data == b"one two"
    (finished,) = path.books.finished
    assert finished.resumes == sink.resumes == 1
    assert [log.goes_on_after for log in finished.attempts] == ["", "node_leaving", "node_leaving"]


async def test_p05_a_client_that_leaves_cancels_its_attempt() -> None:
    path = await Path().start(1)
    task, sink = path.begin()
    node, run = await path.runner()
    node.tell(run, "a")
    await path.settled()
    sink.leave()
    with pytest.raises(ClientGone):
        await task
    await path.settled()
    assert [cancel.attempt for cancel in node.cancels] == [run.attempt]
    assert path.books.finished[0].outcome is Outcome.CLIENT_GONE
    assert path.dispatcher.running == {}


async def test_at_most_three_attempts() -> None:
    path = await Path().start(5)
    task, _sink = path.begin()
    for number in range(3):
        node, run = await path.runner()
        assert run.attempt == f"req_1.{number + 1}"
        node.send(run, Event(error=WireError(kind="failed", message="crash")))
    with pytest.raises(EngineFailed):
        await task
    assert all(node.runs.empty() for node in path.nodes)


async def test_acknowledges_only_what_the_client_has_taken() -> None:
    path = await Path().start(1)
    task, sink = path.begin()
    node, run = await path.runner()
    piece = "x" * 70_000
    node.tell(run, piece)
    await path.settled()
    assert [ack.data_bytes for ack in node.acknowledged] == [70_000]
    sink.full = True
    node.tell(run, piece)
    await path.settled()
    assert len(node.acknowledged) == 1
    sink.full = False
    assert sink.on_drained is not None
    sink.on_drained()
    await path.settled()
    assert node.acknowledged[-1].data_bytes == 140_000
    node.finish(run)
    await task


async def test_a_large_body_travels_in_parts() -> None:
    path = await Path().start(1)
    body = b"x" * 600_000
    task, _sink = path.begin(body=body)
    node, run = await path.runner()
    await path.settled()
    assert run.parts == 3
    assert run.body + b"".join(part.body for part in node.parts) == body
    node.finish(run)
    await task


async def test_a_gateway_that_stops_cancels_what_runs_and_still_keeps_the_books() -> None:
    path = await Path().start(1)
    task, _sink = path.begin()
    node, run = await path.runner()
    await path.settled()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await path.settled()
    assert [cancel.attempt for cancel in node.cancels] == [run.attempt]
    assert len(path.books.finished) == 1


async def test_p18_a_node_that_failed_gets_no_new_work_for_a_moment_though_it_reports_well() -> None:
    path = await Path().start(2)
    task, _sink = path.begin()
    failed, run = await path.runner()
    failed.send(run, Event(error=WireError(kind="timeout", code="first_token", message="nothing came")))
    other, again = await path.runner()
    other.finish(again)
    await task
    path.beat_all()
    await path.settled()
    for _ in range(3):
        task, _sink = path.begin()
        node, run = await path.runner()
        assert node is other
        node.finish(run)
        await task
    path.clock.advance(INHIBITED_S)
    path.beat_all()
    await path.settled()
    task, _sink = path.begin()
    node, run = await path.runner()
    assert node is failed
    node.finish(run)
    await task
