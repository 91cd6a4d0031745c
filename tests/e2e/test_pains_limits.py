"""One slot, one place in the queue: what is refused, what waits, and who leaves while it waits."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.support.asking import Reader, say
from tests.support.installation import until
from tests.support.served import GONE_S_MAX, Served

QUEUE_WAIT_S = 3.0
ENVIRONMENT = {
    "PANAL_NODE__SLOTS": "1",
    "PANAL_GATEWAY__QUEUE_LENGTH_MAX": "1",
    "PANAL_GATEWAY__QUEUE_WAIT_S_MAX": str(QUEUE_WAIT_S),
}


@pytest.fixture
def occupied(served: Served) -> Iterator[Reader]:
    """Somebody has the only slot."""
    served.until_idle()
    busy = Reader(served, "chat", say("count 100", delay_token_s=0.2) | {"stream": True})
    until(lambda: served.engine().stats()["running"] == 1, 10.0, "the slot is taken")
    yield busy
    busy.leave()
    served.until_idle()


def refused(ask: Callable[[], Any]) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as found:
        ask()
    return found.value


def test_a_full_queue_is_a_rate_limit_and_a_long_wait_a_503(served: Served, occupied: Reader) -> None:
    with served.client() as client, ThreadPoolExecutor() as pool:
        begun_s = time.monotonic()
        waiting = pool.submit(refused, lambda: client.chat.completions.create(**say("waits")))
        until(lambda: served.gauge("panal_requests_queued") == 1.0, 5.0, "one waits")
        full = refused(lambda: client.chat.completions.create(**say("too many"), stream=True))
        assert time.monotonic() - begun_s < QUEUE_WAIT_S
        late = waiting.result()
    assert isinstance(full, openai.RateLimitError)
    assert (full.status_code, full.code) == (429, "queue_full")
    assert isinstance(late, openai.InternalServerError)
    assert (late.status_code, late.code) == (503, "queue_deadline")
    for error in (full, late):
        assert int(error.response.headers["retry-after"]) >= 1
        assert error.request_id is not None
    assert served.engine().stats()["running"] == 1


def test_p06_leaving_the_queue_reaches_no_engine_and_frees_the_place(
    served: Served, occupied: Reader
) -> None:
    """(b) of the case, streamed and not."""
    started, before = served.engine().stats()["started"], left_waiting(served)
    for stream in (True, False):
        reader = Reader(served, "chat", say("in the queue") | {"stream": stream})
        until(lambda: served.gauge("panal_requests_queued") == 1.0, 5.0, "it waits")
        reader.leave()
        until(lambda: served.gauge("panal_requests_queued") == 0.0, GONE_S_MAX, "its place is free")
    assert served.gauge("panal_requests_in_flight") == 1.0
    assert served.engine().stats()["started"] == started
    until(lambda: left_waiting(served) == before + 2, 10.0, "both are recorded, without an attempt")


def left_waiting(served: Served) -> int:
    """How many clients left before anything was tried for them."""
    records = served.admin().get("/api/v1/usage", limit=100)["items"]
    return sum((record["outcome"], record["attempts"]) == ("client_gone", 0) for record in records)


def test_who_waits_is_served_when_the_slot_is_free(served: Served, occupied: Reader) -> None:
    with served.client() as client, ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.chat.completions.create, **say("patient"))
        until(lambda: served.gauge("panal_requests_queued") == 1.0, 5.0, "it waits")
        occupied.leave()
        assert waiting.result().choices[0].message.content == "patient"
