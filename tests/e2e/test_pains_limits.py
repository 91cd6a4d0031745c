"""One slot, one place in the queue: what is refused, what waits, and who leaves while it waits."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.e2e.test_pains_streams import read_until
from tests.support.installation import until
from tests.support.served import GONE_S_MAX, Served

QUEUE_WAIT_S = 3.0
ENVIRONMENT = {
    "PANAL_NODE__SLOTS": "1",
    "PANAL_GATEWAY__QUEUE_LENGTH_MAX": "1",
    "PANAL_GATEWAY__QUEUE_WAIT_S_MAX": str(QUEUE_WAIT_S),
}


def say(words: str, **echo: Any) -> dict[str, Any]:
    """A chat request with knobs of the echo engine."""
    return {
        "model": "echo",
        "messages": [{"role": "user", "content": words}],
        "extra_body": {"x_echo": echo} if echo else {},
    }


class Busy:
    """Somebody who has the only slot until told to leave."""

    def __init__(self, served: Served) -> None:
        self._leaving = threading.Event()
        request = say("count 100", delay_token_s=0.2) | {"stream": True}
        arguments = (served, "chat", request, self._leaving)
        self._thread = threading.Thread(target=read_until, args=arguments)
        self._thread.start()
        until(lambda: served.engine().stats()["running"] == 1, 10.0, "the slot is taken")

    def leave(self) -> None:
        self._leaving.set()
        self._thread.join(30.0)


@pytest.fixture
def occupied(served: Served) -> Any:
    served.until_idle()
    busy = Busy(served)
    yield busy
    busy.leave()
    served.until_idle()


def refused(ask: Callable[[], Any]) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as found:
        ask()
    return found.value


def test_a_full_queue_is_a_rate_limit_and_a_long_wait_a_503(served: Served, occupied: Busy) -> None:
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


def test_p06_leaving_the_queue_reaches_no_engine_and_frees_the_place(served: Served, occupied: Busy) -> None:
    """(b) of the case, streamed and not."""
    started = served.engine().stats()["started"]
    for stream in (True, False):
        leaving = threading.Event()
        request = say("in the queue") | {"stream": stream}
        reader = threading.Thread(target=read_until, args=(served, "chat", request, leaving))
        reader.start()
        until(lambda: served.gauge("panal_requests_queued") == 1.0, 5.0, "it waits")
        leaving.set()
        until(lambda: served.gauge("panal_requests_queued") == 0.0, GONE_S_MAX, "its place is free")
        reader.join(10.0)
    assert served.gauge("panal_requests_in_flight") == 1.0
    assert served.engine().stats()["started"] == started
    until(lambda: served.newest_record()["outcome"] == "client_gone", 10.0, "both are recorded")
    assert served.newest_record()["attempts"] == 0


def test_who_waits_is_served_when_the_slot_is_free(served: Served, occupied: Busy) -> None:
    with served.client() as client, ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.chat.completions.create, **say("patient"))
        until(lambda: served.gauge("panal_requests_queued") == 1.0, 5.0, "it waits")
        occupied.leave()
        assert waiting.result().choices[0].message.content == "patient"
