"""The client's deadline, by header and by field of the body."""

import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.clock import ManualClock
from panal.core.errors import BadRequest
from panal.core.ids import IdSource
from panal.core.nodes import DataClass
from panal.core.requests import InferenceRequest, Route
from panal.gateway.translate import Caller, read_request
from tests.support.path import principal

TOTAL_S = 600.0
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[Route, dict[str, Any]] = {
    Route.CHAT: CHAT,
    Route.COMPLETIONS: {"model": "m", "prompt": "hi"},
    Route.EMBEDDINGS: {"model": "m", "input": "hi"},
}


def read(
    body: bytes | dict[str, Any],
    header_s: float | None = None,
    *,
    route: Route = Route.CHAT,
    data_class: DataClass = DataClass.INTERNAL,
) -> InferenceRequest:
    clock = ManualClock()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    caller = Caller(principal(data_class), deadline_s=header_s)
    request = read_request(route, data, caller, IdSource(clock, os.urandom), clock, TOTAL_S)
    assert request.deadline_monotonic_s == clock.monotonic_seconds() + request.total_s_max
    return request


@given(
    field=st.none() | st.floats(min_value=1e-3, max_value=1e300) | st.integers(1, 2**80),
    header=st.none() | st.floats(min_value=1e-3, max_value=1e9),
    route=st.sampled_from(list(BODIES)),
)
def test_the_shorter_counts_on_every_route(field: float | None, header: float | None, route: Route) -> None:
    request = read(BODIES[route] | {"panal_deadline_s": field}, header, route=route)
    given_s = [value for value in (field, header, TOTAL_S) if value is not None]
    assert request.total_s_max == pytest.approx(min(given_s))


@pytest.mark.parametrize("value", [0, -1, True, "5", [], {}, "nan"])
def test_a_wrong_value_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(BadRequest) as refused:
        read(CHAT | {"panal_deadline_s": value})
    assert refused.value.param == "panal_deadline_s"


def test_a_field_that_stands_twice_is_refused() -> None:
    twice = b'"panal_deadline_s":1,"panal\\u005fdeadline_s":9'
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}],' + twice + b"}"
    with pytest.raises(BadRequest) as refused:
        read(body)
    assert refused.value.param == "panal_deadline_s"


def test_the_engine_does_not_see_the_field_and_everything_else_as_it_was_written() -> None:
    body = (
        b'{"panal_deadline_s":5,"model":"m","seed":12345678901234567890123,"x":1.10,"y":"\\u00e9",'
        b'"messages":[{"role":"user",  "content":"hi"}], "n":1}'
    )
    seen = read(body).body
    assert b"deadline" not in seen
    for part in (b"12345678901234567890123", b"1.10", b'"\\u00e9"', b'{"role":"user",  "content":"hi"}'):
        assert part in seen
    assert json.loads(seen) == {key: v for key, v in json.loads(body).items() if key != "panal_deadline_s"}


def test_a_body_without_the_field_is_not_touched() -> None:
    body = b'{ "model" : "m", "messages":[{"role":"user","content":"hi"}] }'
    assert read(body, 3.0).body is body


def test_confidential_requests_may_have_a_deadline() -> None:
    request = read(CHAT | {"panal_deadline_s": 2}, data_class=DataClass.CONFIDENTIAL)
    assert request.total_s_max == 2
