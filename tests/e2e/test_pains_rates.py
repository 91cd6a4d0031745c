"""Limits as the official client meets them, on one gateway process and on two."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.support.asking import say
from tests.support.installation import until
from tests.support.second_gateway import second_gateway
from tests.support.served import Served

IN_FORCE_S_MAX = 10.0


@pytest.fixture(scope="module")
def second_port(served: Served) -> Iterator[int]:
    """Another gateway process on the same store and bus, with a home of its own; gives its port."""
    with second_gateway(served) as port:
        yield port


def new_key(served: Served, **limits: int) -> tuple[str, str]:
    """Id and secret of a key with these limits, in force on every gateway."""
    made = served.admin().post("/api/v1/keys", {"name": "limited"})
    if limits:
        served.admin().call("PUT", f"/api/v1/limits/{made['view']['id']}", limits)
    return made["view"]["id"], made["secret"]


def until_in_force(served: Served, secret: str, *ports: int) -> None:
    """Gateways hear of keys and limits at once by the bus, and within a second without it."""
    for port in (served.installation.http_port, *ports):
        with served.client(secret, port=port) as client:

            def limited(client: openai.OpenAI = client) -> bool:
                try:
                    client.chat.completions.create(**say("x"), max_tokens=100_000)
                except openai.RateLimitError:
                    return True
                except openai.AuthenticationError:
                    return False
                return False

            until(limited, IN_FORCE_S_MAX, "the limits of the key are in force")


def early_in_a_minute() -> None:
    """A test of one window must not begin at its end."""
    until(lambda: time.time() % 60 < 40, 30.0, "a new minute")


def refused(ask: Any) -> openai.RateLimitError | None:
    try:
        ask()
    except openai.RateLimitError as error:
        return error
    return None


def test_p38_parallel_requests_on_two_gateways_never_pass_the_limit(served: Served, second_port: int) -> None:
    """100 tokens a minute and 3 requests; 20 parallel requests of about 60 tokens over two processes."""
    early_in_a_minute()
    key, secret = new_key(served, tokens_per_minute=100, requests_per_minute=3)
    until_in_force(served, secret, second_port)
    with served.client(secret) as first, served.client(secret, port=second_port) as second:
        slow = {"extra_body": {"x_echo": {"delay_token_s": 0.05}}}

        def ask(number: int) -> openai.RateLimitError | None:
            client = (first, second)[number % 2]
            request = say("count 12") | slow | {"max_tokens": 30}
            return refused(lambda: client.chat.completions.create(**request))

        with ThreadPoolExecutor(20) as pool:
            errors = [error for error in pool.map(ask, range(20)) if error is not None]
        assert len(errors) == 19
        for error in errors:
            assert error.code == "rate_limit_exceeded"
            headers = error.response.headers
            assert 1 <= int(headers["retry-after"]) <= 60
            assert headers["x-ratelimit-limit-tokens"] == "100"
            assert headers["x-ratelimit-limit-requests"] == "3"
            assert int(headers["x-ratelimit-remaining-requests"]) >= 2
    records = [item for item in served.admin().get("/api/v1/usage", limit=200)["items"] if item["key"] == key]
    assert sum(item["prompt_tokens"] + item["completion_tokens"] for item in records) <= 100


def test_p38_what_was_reserved_and_not_used_serves_the_next(served: Served, second_port: int) -> None:
    early_in_a_minute()
    _key, secret = new_key(served, tokens_per_minute=400)
    until_in_force(served, secret, second_port)
    with served.client(secret) as first, served.client(secret, port=second_port) as second:
        used = 0
        for client in (first, second, first, second):
            request = say("hi") | {"max_tokens": 250}

            def ask(client: openai.OpenAI = client, request: dict[str, Any] = request) -> Any:
                try:
                    return client.chat.completions.with_raw_response.create(**request)
                except openai.RateLimitError:
                    return None

            raw = until(ask, 5.0, "the part that was not used is given back")
            used += raw.parse().usage.total_tokens
            remaining = int(raw.headers["x-ratelimit-remaining-tokens"])
        assert remaining <= 400 - used
        assert 400 - used > 250


def test_p38_a_client_that_leaves_before_the_first_token_costs_nothing(served: Served) -> None:
    early_in_a_minute()
    _key, secret = new_key(served, tokens_per_minute=300, requests_per_minute=2)
    until_in_force(served, secret)
    with served.client(secret) as client:
        slow = say("hi", delay_first_s=20.0) | {"max_tokens": 200}
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=0.5).chat.completions.create(**slow)
        served.until_idle()
        raw = client.chat.completions.with_raw_response.create(**say("hi"), max_tokens=200)
    assert raw.headers["x-ratelimit-remaining-requests"] == "1"
    assert int(raw.headers["x-ratelimit-remaining-tokens"]) == 300 - raw.parse().usage.total_tokens


def test_streams_carry_the_headers_and_agree_with_the_next_answer(served: Served) -> None:
    early_in_a_minute()
    _key, secret = new_key(served, requests_per_minute=3)
    until_a = new_key(served, tokens_per_minute=1)[1]
    until_in_force(served, until_a)
    seen = []
    with served.client(secret) as client:
        for _ in range(3):
            raw = client.chat.completions.with_raw_response.create(**say("hi"), stream=True)
            seen.append(raw.headers["x-ratelimit-remaining-requests"])
            assert list(raw.parse())
        error = refused(lambda: client.chat.completions.create(**say("hi"), stream=True))
    assert seen == ["2", "1", "0"]
    assert error is not None
    assert error.response.headers["x-ratelimit-remaining-requests"] == "0"


def test_requests_at_once_are_limited_and_free_again(served: Served) -> None:
    key, secret = new_key(served, concurrency=1, tokens_per_minute=100_000)
    until_in_force(served, secret)
    slow = say("count 40", delay_token_s=0.05)
    with served.client(secret) as client, ThreadPoolExecutor() as pool:
        busy = pool.submit(client.chat.completions.create, **slow)
        until(lambda: served.gauge("panal_requests_in_flight") == 1.0, 5.0, "one runs")
        error = refused(lambda: client.chat.completions.create(**say("hi")))
        assert error is not None and error.response.headers["retry-after"] == "1"
        assert busy.result().choices
        assert client.chat.completions.create(**say("hi")).choices
    served.admin().delete(f"/api/v1/limits/{key}")
    assert served.admin().get("/api/v1/limits", subject=key)["items"] == []


def test_limits_are_set_listed_and_cleared_by_command(served: Served) -> None:
    key, _secret = new_key(served)
    run = served.installation.run
    assert run("limits", "set", key, "--tokens-per-day", "5000", "--concurrency", "2") == [
        {"subject": key, "limit": "concurrency", "amount": 2},
        {"subject": key, "limit": "tokens_per_day", "amount": 5000},
    ]
    (shown,) = [each for each in run("keys", "list") if each["id"] == key]
    assert shown["limits"] == {"concurrency": 2, "tokens_per_day": 5000}
    assert len(run("limits", "list", key)) == 2
    assert len(run("limits", "clear", key, "--limit", "concurrency")) == 1
    assert run("limits", "clear", key) == []
    actions = [event["action"] for event in run("audit", "list")]
    assert actions[:3] == ["limit.clear", "limit.clear", "limit.set"]
