"""What users of similar systems suffer from when nodes fail, on every route, streamed and not."""

import asyncio
from typing import Any

import pytest

from panal.core.errors import EngineRefused
from panal.core.requests import Route
from panal.ledger.values import Outcome
from tests.support.cut_path import Cut, CutPath, Seen, seen_of
from tests.support.path import ListSink
from tests.unit.dispatch.test_cuts import KINDS, chat, completion

COUNT = " ".join(str(number) for number in range(1, 51))
QUESTIONS = {
    f"{name}, {'streamed' if stream else 'whole'}": (ask, stream)
    for name, ask in (("chat", chat), ("completions", completion))
    for stream in (True, False)
}


def question_of(ask: Any, stream: bool, text: str, **more: Any) -> tuple[Route, dict[str, Any]]:
    route, body = ask(text, **more)
    if not stream:
        del body["stream"], body["stream_options"]
    return route, body


async def asked(question: tuple[Route, dict[str, Any]], *cuts: Cut, nodes: int) -> tuple[Seen, CutPath]:
    path = CutPath()
    await path.start(nodes)
    return await path.ask(*question, *cuts), path


@pytest.mark.parametrize("kind", ["silence", "crash", "leaving"])
@pytest.mark.parametrize(("ask", "stream"), QUESTIONS.values(), ids=QUESTIONS.keys())
async def test_p01_a_broken_answer_without_another_node_is_told(ask: Any, stream: bool, kind: str) -> None:
    """Three pieces, then the node is gone, and no other node has the model."""
    question = question_of(ask, stream, "abcdefgh" * 10)
    seen, path = await asked(question, Cut(kind, 3), nodes=1)
    assert not seen.finishes and not seen.done and not seen.usages
    (finished,) = path.books.finished
    if stream:
        assert seen.error == "answer_cut"
        assert seen.text and ("\n" + "abcdefgh" * 10).find(seen.text) in (0, 1)
        assert finished.outcome is Outcome.CUT
        assert finished.shown.completion_tokens == len(seen.text)
    else:
        assert seen.error in ("node_lost", "engine_failed", "node_leaving")
        assert not seen.data
        assert finished.outcome is Outcome.FAILED
        assert finished.shown.completion_tokens == 0


@pytest.mark.parametrize("fault", ["stop_after", "close_after", "abort_after"])
@pytest.mark.parametrize(("ask", "stream"), QUESTIONS.values(), ids=QUESTIONS.keys())
async def test_p01_an_engine_that_ends_without_a_finish_is_told(ask: Any, stream: bool, fault: str) -> None:
    path = CutPath()
    await path.start(1)
    seen = await path.ask(*question_of(ask, stream, "abcdef", x_echo={fault: 4}))
    assert not seen.finishes and not seen.done
    assert seen.error == ("answer_cut" if stream else "engine_failed")
    assert seen.text.strip("\n") == (("abcd" if ask is chat else "abc") if stream else "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ask", "stream"), QUESTIONS.values(), ids=QUESTIONS.keys())
async def test_p04_every_number_comes_once_when_the_node_fails_after_20(
    ask: Any, stream: bool, kind: str
) -> None:
    question = question_of(ask, stream, "count 50")
    whole, _ = await asked(question, nodes=2)
    assert whole.text.strip("\n") == COUNT
    at = len("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20") if stream else 4
    seen, path = await asked(question, Cut(kind, at), nodes=2)
    assert seen.view() == whole.view()
    (finished,) = path.books.finished
    assert finished.resumes == 1
    assert finished.outcome is Outcome.COMPLETE
    assert seen.usages[0] == whole.usages[0]
    useful = [log.made().delivered_tokens for log in finished.attempts]
    assert sum(useful) == seen.usages[0]["completion_tokens"]
    assert sum(tokens > 0 for tokens in useful) == 2


async def test_p04_nothing_is_repeated_where_going_on_is_impossible() -> None:
    """Several answers at once cannot go on: after 20 the client hears of it, and gets no number twice."""
    seen, _path = await asked(chat("count 50", n=2), Cut("crash", 40), nodes=2)
    assert seen.error == "answer_cut"
    assert not seen.finishes and not seen.done


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429])
async def test_p25_bad_questions_are_final_and_leave_no_mark(status: int) -> None:
    """50 of them on every route, streamed and not, then a good one of each."""
    path = CutPath(queue_length_max=64)
    await path.start(2)
    knob = {"x_echo": {"status": status}}
    embedding = (Route.EMBEDDINGS, {"model": "m", "input": "x"})
    forms = [question_of(ask, stream, "x") for ask, stream in QUESTIONS.values()] + [embedding]

    async def refused(number: int) -> None:
        route, body = forms[number % len(forms)]
        with pytest.raises(EngineRefused) as error:
            await path.dispatcher.answer(path.request(route, {**body, **knob}, number=number), ListSink())
        assert error.value.status == status
        assert b"as asked" in error.value.body

    await asyncio.gather(*[refused(number) for number in range(50)])
    assert [len(finished.attempts) for finished in path.books.finished] == [1] * 50
    assert {finished.outcome for finished in path.books.finished} == {Outcome.REFUSED}
    for _replica, own in path.fleet.candidates("m"):
        assert own.inhibited_until_s == 0.0
        assert own.running == 0
    for number, (route, body) in enumerate(forms, start=100):
        sink = ListSink()
        data = await path.dispatcher.answer(path.request(route, body, number=number), sink)
        if route is not Route.EMBEDDINGS:
            seen = seen_of(sink.data + data, stream=bool(body.get("stream")))
            assert seen.text.strip("\n") == "x"
        assert len(path.books.finished[-1].attempts) == 1
