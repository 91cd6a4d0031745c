"""What differs between OpenAI-compatible engines: which options to ask with, how to read their chunks."""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from panal.core.requests import Route
from panal.node.engines.engine import Delta, EngineCall, Json
from panal.protocol.messages import TokenUsage

PATHS = {
    Route.CHAT: "/v1/chat/completions",
    Route.COMPLETIONS: "/v1/completions",
    Route.EMBEDDINGS: "/v1/embeddings",
}

Ask = Callable[[str, Json], Awaitable[Json]]
"""POST a small JSON body to a path of the engine and decode its answer; raises as ``generate`` does."""

CHAT_ONLY = frozenset(
    {
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "max_completion_tokens",
        "response_format",
        "logprobs",
        "top_logprobs",
        "modalities",
        "audio",
        "prediction",
        "reasoning_effort",
        "verbosity",
        "chat_template",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
    }
)
"""Fields of the chat route that the completions route does not know."""

TEMPLATE_FIELDS = (
    "messages",
    "tools",
    "tool_choice",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "response_format",
    "add_generation_prompt",
    "continue_final_message",
)
"""Fields that decide how messages become a prompt."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What to send. ``nothing_left``: the answer has all the tokens it may have; send nothing."""

    path: str
    body: Json
    nothing_left: bool = False


class ChunkReader(Protocol):
    """Reads the chunks of one answer, in order."""

    def short(self, event: bytes) -> Delta | None:
        """The delta of an undecoded chunk that is nothing but text; None sends it the long way."""
        ...

    async def read(self, chunk: Json) -> Delta:
        """The chunk cleaned, with what panal must know. Raises EngineFailed for a broken chunk."""
        ...


class Dialect(Protocol):
    """One way to speak OpenAI's API."""

    def first(self, call: EngineCall, model: str) -> EngineRequest:
        """The request for an answer from its beginning."""
        ...

    async def resumed(self, call: EngineCall, model: str, context_tokens: int, ask: Ask) -> EngineRequest:
        """The request for the rest of an answer. Raises EngineFailed where that cannot be done."""
        ...

    def reader(self, call: EngineCall, ask: Ask) -> ChunkReader: ...


def streamed(body: Json, model: str) -> Json:
    """A copy of the client's body that asks for a stream with usage; every other field as it came."""
    options = body.get("stream_options")
    merged = {**options, "include_usage": True} if isinstance(options, dict) else {"include_usage": True}
    return {**body, "model": model, "stream": True, "stream_options": merged}


def tokens_max(body: Json) -> int | None:
    """The client's limit of new tokens, by either of its names."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def continuation_body(call: EngineCall, model: str) -> Json:
    """The completions body that goes on with the same sampling: fewer tokens to make, another seed.

    The prompt is left to the dialect. Engines restart their generator of random numbers, so an equal
    seed would draw the same numbers again; a new one is derived from it.
    """
    body = {name: value for name, value in streamed(call.body, model).items() if name not in CHAT_ONLY}
    for name in ("echo", "suffix", "best_of"):
        body.pop(name, None)
    limit = tokens_max(call.body)
    if limit is not None:
        body["max_tokens"] = limit
    return rest_of(call, body)


def rest_of(call: EngineCall, body: Json) -> Json:
    """``body`` with limits that are smaller by what was made, and the seed that follows from both.

    seed' = the first 31 bits of SHA-256 of "<seed>:<tokens made>".
    """
    assert call.emitted is not None
    made = call.emitted.completion_tokens
    for name in ("max_completion_tokens", "max_tokens", "min_tokens"):
        limit = body.get(name)
        if isinstance(limit, int) and not isinstance(limit, bool):
            body[name] = max(limit - made, 0)
    seed = body.get("seed")
    if isinstance(seed, int):
        digest = hashlib.sha256(f"{seed}:{made}".encode()).digest()
        body["seed"] = int.from_bytes(digest[:4], "big") >> 1
    return body


def calls_tools(body: Json) -> bool:
    """Whether the answer may hold tool calls, which only the chat route tells from text."""
    return bool(body.get("tools") or body.get("functions")) and body.get("tool_choice") != "none"


def usage_of(raw: Json) -> TokenUsage:
    """An engine's usage; what is missing or no number counts as 0."""
    details = raw.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return TokenUsage(
        prompt_tokens=_count(raw.get("prompt_tokens")),
        completion_tokens=_count(raw.get("completion_tokens")),
        cached_tokens=_count(cached),
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def plain_delta(chunk: Json, route: Route) -> Delta:
    """What any OpenAI chunk says: text, finish, usage, and whether anything else than text is in it."""
    delta = Delta(chunk=chunk)
    raw_usage = chunk.pop("usage", None)
    if isinstance(raw_usage, dict):
        delta.raw_usage = raw_usage
        delta.usage = usage_of(raw_usage)
    choices = chunk.get("choices")
    if not choices:
        delta.chunk = None
        return delta
    for choice in choices:
        made_text, opaque = _read_choice(choice, route)
        delta.opaque = delta.opaque or opaque
        delta.tokens += 1 if made_text or opaque else 0
        if not choice.get("index"):
            delta.text += made_text
            delta.finish = choice.get("finish_reason") or delta.finish
    return delta


def _read_choice(choice: Json, route: Route) -> tuple[str, bool]:
    if route is Route.COMPLETIONS:
        text = choice.get("text")
        return (text if isinstance(text, str) else ""), False
    content = choice.get("delta")
    if not isinstance(content, dict):
        return "", False
    text = content.get("content")
    opaque = any(
        value is not None and value != []
        for name, value in content.items()
        if name not in ("role", "content")
    )
    return (text if isinstance(text, str) else ""), opaque


def as_chat_chunk(chunk: Json) -> Json:
    """A completions chunk in the shape of the chat route."""
    choices = []
    for choice in chunk.get("choices") or ():
        rest = {name: value for name, value in choice.items() if name not in ("text", "logprobs")}
        text = choice.get("text")
        choices.append({**rest, "delta": {"content": text} if text else {}})
    return {**chunk, "choices": choices}
