"""P07, P15: usage that comes late or at an odd place: exact, or an estimate that says so; never lost."""

import json
import time
from typing import Any

import pytest

from tests.support.asking import say, wire
from tests.support.installation import until
from tests.support.served import Served

TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
EXACT: list[dict[str, Any]] = [
    {"usage": "finish"},
    {"usage": "with_done"},
    {"usage_delay_s": 0.5},
    {"usage": "with_done", "usage_delay_s": 0.5},
]
TOO_LATE: list[dict[str, Any]] = [{"usage": "after_done"}, {"usage_delay_s": 60.0}]


def names(knobs: dict[str, Any]) -> str:
    return " ".join(str(value) for value in knobs.values())


def last_of(served: Served, body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """What carries the usage; a streamed answer must be finished."""
    if not stream:
        whole: dict[str, Any] = served.call("POST", "/v1/chat/completions", body).json
        return whole
    events = served.events("/v1/chat/completions", body | {"stream_options": {"include_usage": True}})
    assert events[-1] == "[DONE]"
    assert sum('"usage":{' in event for event in events) == 1
    last: dict[str, Any] = json.loads(events[-2])
    return last


def checked(served: Served, last: dict[str, Any]) -> dict[str, Any]:
    """The record, which says what the client was shown."""
    record = served.record_of(last["id"])
    shown = (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"])
    assert shown == (record["prompt_tokens"], record["completion_tokens"])
    assert record["outcome"] == "complete"
    assert min(shown) > 0
    return record


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("knobs", [*EXACT, *TOO_LATE], ids=names)
def test_p07_an_answer_whose_tokens_were_seen_is_exact_whenever_its_usage_comes(
    served: Served, knobs: dict[str, Any], stream: bool
) -> None:
    words = "héllo"
    begun_s = time.monotonic()
    record = checked(served, last_of(served, wire(say(words, **knobs)), stream=stream))
    assert time.monotonic() - begun_s < 20.0
    assert record["completion_tokens"] == len(words.encode())
    assert record["estimated"] is False


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("knobs", EXACT, ids=names)
def test_p15_usage_that_comes_in_time_is_the_engines(
    served: Served, knobs: dict[str, Any], stream: bool
) -> None:
    """Tool calls come without token ids, so that only the engine knows."""
    plain = checked(served, last_of(served, wire(say("use a tool")) | {"tools": TOOLS}, stream=stream))
    body = wire(say("use a tool", **knobs)) | {"tools": TOOLS}
    record = checked(served, last_of(served, body, stream=stream))
    assert record["estimated"] is False
    assert record["completion_tokens"] == plain["completion_tokens"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("knobs", TOO_LATE, ids=names)
def test_p07_usage_that_comes_too_late_becomes_an_estimate_that_says_so(
    served: Served, knobs: dict[str, Any], stream: bool
) -> None:
    begun_s = time.monotonic()
    body = wire(say("use a tool", **knobs)) | {"tools": TOOLS}
    record = checked(served, last_of(served, body, stream=stream))
    assert time.monotonic() - begun_s < 20.0
    assert record["estimated"] is True
    assert record["attempts"] == 1
    until(lambda: served.engine().stats()["running"] == 0, 10.0, "the engine is free")


def test_p07_a_client_that_leaves_while_the_usage_is_late_pays_for_what_it_has(served: Served) -> None:
    served.until_idle()
    known = {item["request"] for item in served.admin().get("/api/v1/usage", limit=200)["items"]}
    with served.client() as client:
        stream = client.chat.completions.create(**say("count 5", usage_delay_s=60.0), stream=True)
        said = ""
        for chunk in stream:
            said += chunk.choices[0].delta.content or ""
            if said == "1 2 3 4 5":
                break
        stream.close()
    served.until_idle()

    def fresh() -> list[dict[str, Any]]:
        items = served.admin().get("/api/v1/usage", limit=200)["items"]
        return [item for item in items if item["request"] not in known]

    (record,) = until(fresh, 15.0, "a record")
    assert record["completion_tokens"] == len("1 2 3 4 5")
    assert record["prompt_tokens"] > 0
