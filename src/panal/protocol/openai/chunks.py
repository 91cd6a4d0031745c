"""The shapes of OpenAI's answers that panal writes itself: chunks, whole answers, usage, the last event."""

from typing import Any

import msgspec

from panal.core.requests import Route
from panal.protocol.messages import TokenUsage

Json = dict[str, Any]

DONE = b"data: [DONE]\n\n"

CHUNK_OBJECTS = {Route.CHAT: "chat.completion.chunk", Route.COMPLETIONS: "text_completion"}
WHOLE_OBJECTS = {Route.CHAT: "chat.completion", Route.COMPLETIONS: "text_completion"}


def event(body: Json) -> bytes:
    """One SSE event with a JSON object."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def role_choice(index: int) -> Json:
    """The first choice of a chat stream: who speaks."""
    return {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}


def text_choice(route: Route, text: str, finish: str | None) -> Json:
    """A choice of a chunk of the first answer."""
    if route is Route.CHAT:
        return {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}


def usage_body(usage: TokenUsage, raw: Json) -> Json:
    """The usage object: the engine's further details as they came, the numbers ours."""
    body: Json = {
        **raw,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.cached_tokens:
        details = raw.get("prompt_tokens_details")
        known = details if isinstance(details, dict) else {}
        body["prompt_tokens_details"] = {**known, "cached_tokens": usage.cached_tokens}
    return body
