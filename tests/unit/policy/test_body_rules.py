"""Body rules: what is refused is named, what is ordinary passes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.errors import BadRequest
from panal.core.requests import Route
from panal.policy.body_rules import DENIED_ANYWHERE, DENIED_ON_TOP, check_body, resumable

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "hello"}],
    "max_tokens": 10,
    "temperature": 0.2,
    "stream": True,
}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def lists(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def message(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize("name", sorted(DENIED_ON_TOP))
def test_denied_fields_are_named(name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_body({**CHAT, name: "x"})
    assert caught.value.param == name
    assert name in caught.value.message


@pytest.mark.parametrize("name", sorted(DENIED_ANYWHERE))
def test_denied_fields_are_found_inside_others(name: str) -> None:
    for body in (
        {**CHAT, "extra_body": {name: "http://x"}},
        {**CHAT, "metadata": {"a": [{"b": {name: "http://x"}}]}},
        {"messages": [{"role": "user", "content": "x", "options": {name: 1}}]},
        {"messages": [{"role": "user", "content": "x", name: 1}]},
        message([{"type": "text", "text": "x", name: "y"}]),
    ):
        with pytest.raises(BadRequest) as caught:
            check_body(body)
        assert caught.value.param is not None
        assert caught.value.param.endswith("." + name)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 9}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"best_of": 9}, "best_of"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"messages": [{"role": "user", "content": "x"}] * 2001}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [1]}, "messages.0"),
        ({"tools": [{}] * 129}, "tools"),
        ({"tools": {}}, "tools"),
        ({"functions": [{}] * 129}, "functions"),
        ({"grammar": "x" * 20_000}, "grammar"),
        ({"grammar": {}}, "grammar"),
        ({"guided_regex": "x" * 5000}, "guided_regex"),
        ({"structured_outputs": {"regex": "x" * 5000}}, "structured_outputs"),
        ({"input": ["x"] * 2049}, "input"),
        ({"prompt": ["x"] * 2049}, "prompt"),
        ({"prompt": lists(100)}, "0"),
        ({"input": {}}, "input"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "http://x/"}}}},
            "$ref",
        ),
        ({"guided_json": "x" * 20_000}, "guided_json"),
    ],
)
def test_limits_are_kept_and_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_body(body)
    assert caught.value.param is not None
    assert caught.value.param.endswith(param)


@pytest.mark.parametrize("make", [nested, lists])
def test_depth_is_bounded_everywhere(make: Any) -> None:
    for place in ("anything", "metadata"):
        check_body({place: make(60)})
        for depth in (64, 900):
            with pytest.raises(BadRequest, match="deeper than 64"):
                check_body({place: make(depth)})
    for body in (message(make(100)), message([make(100)]), {"messages": [{"tool_calls": make(100)}]}):
        with pytest.raises(BadRequest, match="deeper"):
            check_body(body)
    with pytest.raises(BadRequest, match="deeper than 32"):
        check_body({"tools": [make(40)]})
    with pytest.raises(BadRequest, match="deeper than 32"):
        check_body({"response_format": {"json_schema": make(40)}})


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://10.0.0.1/x"}},
        {"type": "image_url", "image_url": "https://x/y"},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "image_url", "image_url": {"url": " data:image/png;base64,AA"}},
        {"type": "video_url", "video_url": {"url": "ftp://x"}},
        {"type": "audio_url", "audio_url": {"url": "//x"}},
        {"type": "text", "text": "x", "image_url": "http://x"},
        {"type": "odd", "deeper": [{"source_url": "http://x"}]},
    ],
)
def test_media_by_address_are_refused(part: Any) -> None:
    with pytest.raises(BadRequest, match="data:"):
        check_body(message([{"type": "text", "text": "look"}, part]))
    with pytest.raises(BadRequest, match="data:"):
        check_body({"messages": [{"role": "user", "content": part}]})


def test_ordinary_requests_pass() -> None:
    check_body(CHAT)
    check_body(message([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]))
    check_body({**CHAT, "tools": [tool({"base_url": {"type": "string"}, "priority": {"$ref": "#/x"}})]})
    check_body(
        {**CHAT, "unknown_field": {"a": [1]}, "logit_bias": {"1": 2}, "chat_template_kwargs": {"t": False}}
    )
    check_body(
        {**CHAT, "n": None, "stop": None, "tools": None, "logprobs": True, "top_logprobs": 20, "stop_": "x"}
    )
    check_body({"model": "m", "prompt": [1, 2, 3], "logprobs": 5, "stop": "x"})
    check_body({"messages": [{"role": "user", "content": "see http://x/ and api_base"}]})
    check_body(
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]}
    )


def tool(properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=20,
)
NAMES = st.sampled_from(
    ["messages", "n", "stop", "tools", "response_format", "logprobs", "prompt", "x", "api_base"]
)


@given(st.dictionaries(NAMES, JSON, max_size=5))
def test_any_json_is_passed_or_refused_and_never_crashes(body: dict[str, Any]) -> None:
    for route in Route:
        assert resumable(route, body) in (True, False)
    try:
        check_body(body)
    except BadRequest as error:
        assert error.param


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"response_format": {"type": "text"}},
        {"n": 1, "logprobs": False, "tool_choice": "auto", "tools": [tool({})]},
        {"response_format": None, "top_logprobs": 0, "modalities": ["text"], "echo": False},
        {"stop": ["x"], "seed": 3, "temperature": 0},
    ],
)
def test_plain_answers_can_go_on_elsewhere(extra: dict[str, Any]) -> None:
    assert resumable(Route.CHAT, {**CHAT, **extra})
    assert resumable(Route.COMPLETIONS, {"prompt": "x", **extra})


@pytest.mark.parametrize(
    "extra",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"response_format": "text"},
        {"grammar": "root ::= x"},
        {"guided_json": {}},
        {"structured_outputs": {"choice": ["a"]}},
        {"logprobs": True},
        {"logprobs": 0},
        {"top_logprobs": 3},
        {"n": 2},
        {"n": True},
        {"best_of": 2},
        {"echo": True},
        {"suffix": "x"},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function"}},
        {"min_tokens": 5, "stop": "x"},
        {"modalities": ["text", "audio"]},
    ],
)
def test_what_text_alone_cannot_continue_is_not_resumable(extra: dict[str, Any]) -> None:
    assert not resumable(Route.CHAT, {**CHAT, **extra})
    assert not resumable(Route.COMPLETIONS, {"prompt": "x", **extra})


def test_several_prompts_pictures_and_embeddings_are_not_resumable() -> None:
    assert resumable(Route.COMPLETIONS, {"prompt": ["x"]})
    assert resumable(Route.COMPLETIONS, {"prompt": [1, 2, 3]})
    assert not resumable(Route.COMPLETIONS, {"prompt": ["x", "y"]})
    assert not resumable(Route.COMPLETIONS, {"prompt": [[1], [2]]})
    assert not resumable(Route.COMPLETIONS, {})
    assert not resumable(Route.EMBEDDINGS, {"input": "x"})
    assert not resumable(Route.CHAT, {})
    assert resumable(Route.CHAT, message([{"type": "text", "text": "x"}]))
    assert not resumable(Route.CHAT, message([{"type": "image_url", "image_url": {"url": "data:"}}]))
