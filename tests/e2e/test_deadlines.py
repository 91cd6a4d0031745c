"""Deadlines by header and by field: one rule on every route, in the queue and around the first byte."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.support.asking import Reader, say, wire
from tests.support.installation import until
from tests.support.served import GONE_S_MAX, Reply, Served

ENVIRONMENT = {"PANAL_NODE__SLOTS": "1"}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": wire(say("count 300", delay_token_s=0.05)),
    "/v1/completions": {"model": "echo", "prompt": "count 300", "x_echo": {"delay_token_s": 0.05}},
    "/v1/embeddings": {"model": "echo", "input": "hi"},
}
TEXT = [route for route in ROUTES if "embeddings" not in route]


@pytest.fixture
def occupied(served: Served) -> Iterator[None]:
    """Somebody has the only slot."""
    served.until_idle()
    busy = Reader(served, "chat", say("count 100", delay_token_s=0.2) | {"stream": True})
    until(lambda: served.engine().stats()["running"] == 1, 10.0, "the slot is taken")
    yield
    busy.leave()
    served.until_idle()


def ask(served: Served, route: str, by: str, seconds: float, **more: Any) -> Reply:
    body = ROUTES[route] | more
    if by == "header":
        return served.call("POST", route, body, headers={"x-panal-deadline-s": str(seconds)})
    if by == "both":
        headers = {"x-panal-deadline-s": str(seconds * 100)}
        return served.call("POST", route, body | {"panal_deadline_s": seconds}, headers=headers)
    return served.call("POST", route, body | {"panal_deadline_s": seconds})


def over(reply: Reply) -> None:
    assert (reply.status, reply.error["code"], reply.error["type"]) == (
        504,
        "deadline_exceeded",
        "timeout_error",
    ), reply.body


@pytest.mark.parametrize("by", ["header", "field", "both"])
@pytest.mark.parametrize("route", ROUTES)
def test_in_the_queue(served: Served, occupied: None, route: str, by: str) -> None:
    started = served.engine().stats()["started"]
    over(ask(served, route, by, 0.3))
    assert served.gauge("panal_requests_queued") == 0.0
    assert served.engine().stats()["started"] == started


@pytest.mark.parametrize("by", ["header", "field"])
@pytest.mark.parametrize("route", TEXT)
@pytest.mark.parametrize("stream", [True, False])
def test_before_the_first_byte(served: Served, route: str, by: str, stream: bool) -> None:
    served.until_idle()
    cancelled = served.engine().stats()["cancelled"]
    slow = {"x_echo": {"delay_first_s": 20.0}}
    over(ask(served, route, by, 0.4, stream=stream, **slow))
    served.engine().until_cancelled(cancelled, GONE_S_MAX)


@pytest.mark.parametrize("by", ["header", "field"])
@pytest.mark.parametrize("route", TEXT)
def test_after_the_first_byte(served: Served, route: str, by: str) -> None:
    served.until_idle()
    cancelled = served.engine().stats()["cancelled"]
    reply = ask(served, route, by, 0.8, stream=True)
    assert reply.status == 200
    events = [line[6:] for line in reply.body.decode().split("\n") if line.startswith("data: ")]
    assert len(events) > 3
    assert "[DONE]" not in events
    assert json.loads(events[-1])["error"]["code"] == "deadline_exceeded"
    served.engine().until_cancelled(cancelled, GONE_S_MAX)
    record = served.record_of(json.loads(events[0])["id"])
    assert (record["outcome"], record["error_code"], record["partial"]) == ("cut", "deadline_exceeded", True)


def test_the_official_client_sends_the_field_and_no_engine_sees_it(served: Served) -> None:
    with served.client() as client:
        answer = client.chat.completions.create(
            **say("hi"), extra_body={"panal_deadline_s": 30.5, "x_echo": {"echo_body": True}, "x_kept": 1.5}
        )
        seen = json.loads(answer.choices[0].message.content or "")
        assert "panal_deadline_s" not in seen
        assert seen["x_kept"] == 1.5
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**say("hi"), extra_body={"panal_deadline_s": "soon"})
        assert refused.value.param == "panal_deadline_s"


def test_p25_a_hurried_client_spoils_the_node_for_nobody(served: Served) -> None:
    for _ in range(5):
        over(ask(served, TEXT[0], "field", 0.1, x_echo={"delay_first_s": 5.0}))
    assert served.call("POST", TEXT[0], wire(say("still here"))).status == 200
