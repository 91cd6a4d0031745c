"""Large questions and large answers: bodies that travel in parts, answers in pieces, slow readers."""

import time

import pytest

from tests.support.served import Served

LETTERS = "Räksmörgås 🐝 " * 4_500
"""More than the agent keeps in one event, and than the gateway lets be unread."""


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_large_question_and_its_large_answer_arrive_unchanged(served: Served, stream: bool) -> None:
    messages = [{"role": "user", "content": LETTERS}]
    with served.client() as client:
        if stream:
            chunks = client.chat.completions.create(model="echo", messages=messages, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        else:
            answer = client.chat.completions.create(model="echo", messages=messages)
            text = answer.choices[0].message.content or ""
    assert text == LETTERS


def test_a_question_of_many_messages_on_the_bus_is_understood(served: Served) -> None:
    long = {"role": "system", "content": "x" * 900_000}
    with served.client() as client:
        question = [long, {"role": "user", "content": "count 3"}]
        answer = client.chat.completions.create(model="echo", messages=question)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == "1 2 3"


def test_many_embeddings_come_in_order(served: Served) -> None:
    inputs = [f"text {number}" for number in range(1500)]
    with served.client() as client:
        answer = client.embeddings.create(model="echo", input=inputs)
        alone = client.embeddings.create(model="echo", input=inputs[777])
    assert [each.index for each in answer.data] == list(range(1500))
    assert answer.data[777].embedding == alone.data[0].embedding


def test_a_reader_that_pauses_gets_everything_and_holds_nobody_up(served: Served) -> None:
    body = {"model": "echo", "stream": True, "messages": [{"role": "user", "content": LETTERS}]}
    with served.client() as client:
        slow = client.chat.completions.create(model="echo", messages=body["messages"], stream=True)
        begun = next(iter(slow))
        time.sleep(2.0)  # the promise is about a client that really does not read for a while
        quick = client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "hi"}])
        assert quick.choices[0].message.content == "hi"
        text = (begun.choices[0].delta.content or "") + "".join(
            chunk.choices[0].delta.content or "" for chunk in slow if chunk.choices
        )
    assert text == LETTERS
