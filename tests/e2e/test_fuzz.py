"""Documented requests with random damage: whatever comes, the answer is never a mistake of ours.

``make fuzz`` tries many more.
"""

import copy
import http.client
import json
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.asking import say, wire
from tests.support.served import Served

NOW_UTC_S = int(time.time())
LINUX = sys.platform == "linux"
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
TRIES = settings(
    max_examples=EXAMPLES,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

SHAPES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **wire(say("hello")),
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
        "max_completion_tokens": 5,
        "temperature": 0.5,
        "top_p": 1.0,
        "n": 1,
        "stop": ["x", "y"],
        "seed": 1,
        "logit_bias": {"50": 1},
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"type": "object"}},
        },
        "tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}}],
        "tool_choice": "auto",
        "user": "somebody",
        "panal_deadline_s": 30,
    },
    "/v1/completions": {"model": "echo", "prompt": "hello", "stream": False, "suffix": "a", "echo": True},
    "/v1/embeddings": {"model": "echo", "input": ["a", "b"], "encoding_format": "float", "dimensions": 8},
    "/api/v1/keys": {
        "name": "a",
        "role": "user",
        "data_class": "internal",
        "life_s": 60,
        "residency": ["ES"],
        "principal_id": "",
        "new_principal": "",
    },
    "/api/v1/tokens": {
        "node_class": "desktop",
        "uses": 1,
        "life_s": 60,
        "site": "a",
        "country": "ES",
        "data_class": "internal",
        "approve": False,
    },
    "/api/v1/usage/prune": {"before_utc_s": 1.5, "dry_run": False},
    "/api/v1/limits/tnt_nobody": {"requests_per_minute": 9, "tokens_per_day": 9, "concurrency": 1},
    "/api/v1/nodes/nobody/cordon": {"reason": "a"},
    "/join/v1/nodes": {
        "token": f"pnl1_{'a' * 10}_{'b' * 32}_{'c' * 32}",
        "node_key": "U" + "A" * 55,
        "issued_utc_s": NOW_UTC_S,
        "signature": "A" * 86 + "==",
        "host_name": "h",
        "machine": "",
        "protocol_version": 1,
    },
    "/join/v1/credentials": {
        "node": "node_a",
        "node_key": "U" + "A" * 55,
        "issued_utc_s": NOW_UTC_S,
        "signature": "A" * 86 + "==",
    },
}

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(["", "\0", "../..", "echo", "data:,", "http://127.0.0.1/", "\r\nX-A: 1", "😀", "’"]),
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    ["x-panal-data-class", "x-panal-deadline-s", "x-panal-show-nodes", "traceparent", "content-type",
     "accept", "x-a", "cookie", "x-forwarded-for", "forwarded", "expect", "te", "range", "if-match", "origin",
     "idempotency-key"]
)  # fmt: skip
VALUES = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=30
)
HEADERS = st.dictionaries(NAMES, VALUES, max_size=3)


@st.composite
def damaged(draw: st.DrawFn, shape: dict[str, Any]) -> bytes:
    """The shape as JSON with one to three damages; sometimes also in its bytes."""
    body = copy.deepcopy(shape)
    for _ in range(draw(st.integers(1, 3))):
        places = [place for place in places_of(body) if place]
        if places:
            holder, name = draw(st.sampled_from(places))
            match draw(st.sampled_from(["replace", "remove", "add"])):
                case "replace":
                    holder[name] = draw(ANYTHING)
                case "remove":
                    del holder[name]
                case _ if isinstance(holder, dict):
                    holder[draw(st.text(max_size=10))] = draw(ANYTHING)
                case _:
                    holder.append(draw(ANYTHING))
    data = json.dumps(body, ensure_ascii=draw(st.booleans())).encode("utf-8", "replace")
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 3)) :]
    return data


def places_of(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON value that could be changed: its holder, and the name or number there."""
    for name in list(value if isinstance(value, dict) else range(len(value))):
        yield value, name
        if isinstance(value[name], dict | list):
            yield from places_of(value[name])


def asked(
    served: Served, method: str, path: str, body: bytes | None, headers: dict[str, str], key: str
) -> tuple[int, bytes]:
    # Guesses at joins are slowed down by address; from many addresses they reach the code behind.
    source = (f"127.1.{random.randrange(256)}.{random.randrange(1, 255)}", 0) if LINUX else None
    connection = http.client.HTTPConnection(
        "127.0.0.1", served.installation.http_port, timeout=30.0, source_address=source
    )
    given_too = {name: value.encode("latin-1") for name, value in headers.items()}
    try:
        connection.request(method, path, body, {"authorization": f"Bearer {key}", **given_too})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def right(status: int, data: bytes, request: str) -> None:
    """No mistake of ours; a refusal says what it is."""
    assert status < 500 or status == 503 or b'"deadline_exceeded"' in data, (request, data)
    if status >= 400 and data:
        error = json.loads(data)["error"]
        assert error["message"], request


@pytest.mark.parametrize("path", SHAPES)
def test_damaged_bodies_are_refused_or_answered(served: Served, path: str) -> None:
    key = served.installation.admin_key if path.startswith("/api/") else served.installation.key
    method = "PUT" if "/limits/" in path else "POST"

    @TRIES
    @given(damaged(SHAPES[path]), HEADERS)
    def attempt(body: bytes, headers: dict[str, str]) -> None:
        status, data = asked(served, method, path, body, headers, key)
        right(status, data, f"{path} {body!r} {headers}")
        assert b'"error":{"message":"The engine' not in data, body

    attempt()
    alive(served)


def test_every_route_takes_any_words_in_its_path_and_query(served: Served) -> None:
    document = served.call("GET", "/api/v1/openapi.json", key=served.installation.admin_key).json
    routes = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]
    assert len(routes) > 20
    words = st.text(min_size=1, max_size=12).map(quoted)

    @TRIES
    @given(st.sampled_from(routes), words, st.dictionaries(words, words, max_size=3), HEADERS)
    def attempt(route: tuple[str, str], word: str, query: dict[str, str], headers: dict[str, str]) -> None:
        method, path = route
        path = re.sub(r"\{[^}]*\}", lambda _match: word, path)
        path += "?" + "&".join(f"{name}={value}" for name, value in query.items())
        body = None if method in ("GET", "DELETE") else b"{}"
        status, data = asked(served, method, path, body, headers, served.installation.admin_key)
        right(status, data, f"{method} {path} {headers}")

    attempt()
    alive(served)


@pytest.mark.parametrize("name", ["limit", "before", "after", "subject", "since_utc_s", "principal", "model"])
def test_queries_of_the_pages_take_any_words(served: Served, name: str) -> None:
    @settings(TRIES, max_examples=max(20, EXAMPLES // 10))
    @given(st.text(max_size=20).map(quoted))
    def attempt(word: str) -> None:
        for path in (
            "/api/v1/usage",
            "/api/v1/audit",
            "/api/v1/usage/totals",
            "/api/v1/limits",
            "/api/v1/keys",
        ):
            target = f"{path}?{name}={word}"
            right(*asked(served, "GET", target, None, {}, served.installation.admin_key), target)

    attempt()


def quoted(text: str) -> str:
    """Percent-encoded, every byte of it."""
    return "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "surrogatepass"))


def alive(served: Served) -> None:
    assert served.call("POST", "/v1/chat/completions", wire(say("still here"))).status == 200
    served.until_idle(30.0)
