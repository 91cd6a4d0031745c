"""Going on by an open assistant message: the text so far is the last message, and is not closed.

The second best way, for engines that give no token ids, and for answers that may call tools, since only
the chat route reads tool calls. The text goes through the template and the tokenizer again, so the joint
may be tokenized otherwise than it was made. Nothing is added to it. Only for engines that are known to
support it; the list stands in docs/resume.md.
"""

import re

from panal.core.errors import EngineFailed
from panal.core.requests import Route
from panal.node.engines.dialect import PATHS, Ask, ChunkReader, EngineRequest, rest_of, streamed
from panal.node.engines.engine import Delta, EngineCall, Json
from panal.node.engines.plain import PlainDialect, PlainReader
from panal.node.engines.token_ids import only_prompt

_NUMBERS = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


def open_message(call: EngineCall, model: str, *, generation_prompt: bool) -> EngineRequest:
    """The request for the rest of an answer. ``generation_prompt``: the engine wants to hear that no new
    turn shall begin. Raises EngineFailed where the prompt is not a text."""
    assert call.emitted is not None
    body = rest_of(call, streamed(call.body, model))
    if call.route is Route.CHAT:
        said = {"role": "assistant", "content": call.emitted.text}
        body["messages"] = [*call.body["messages"], said]
        body["continue_final_message"] = True
        if generation_prompt:
            body["add_generation_prompt"] = False
    else:
        prompt = only_prompt(call.body.get("prompt"))
        if not isinstance(prompt, str):
            raise EngineFailed("this engine cannot continue a prompt of token ids")
        body["prompt"] = prompt + call.emitted.text
    nothing_left = any(body.get(name) == 0 for name in ("max_completion_tokens", "max_tokens"))
    return EngineRequest(PATHS[call.route], body, nothing_left=nothing_left)


def vllm_message(call: EngineCall, model: str) -> EngineRequest:
    """vLLM refuses an open message together with a generation prompt."""
    return open_message(call, model, generation_prompt=True)


class CountingReader(PlainReader):
    """Chunks that each carry the usage so far: without ids the only true count of tokens."""

    def __init__(self, call: EngineCall) -> None:
        super().__init__(call)
        self._seen = 0
        self.short = _never

    async def read(self, chunk: Json) -> Delta:
        delta = await super().read(chunk)
        if delta.usage is not None and delta.usage.completion_tokens:
            delta.tokens = max(delta.usage.completion_tokens - self._seen, 0)
            self._seen += delta.tokens
        return delta


def _never(event: bytes) -> Delta | None:
    """Every chunk carries usage, so none is nothing but text."""
    del event
    return None


class MessageDialect(PlainDialect):
    """An engine that gives no token ids but continues an open message: SGLang."""

    def first(self, call: EngineCall, model: str) -> EngineRequest:
        return _counting(super().first(call, model))

    async def resumed(self, call: EngineCall, model: str, context_tokens: int, ask: Ask) -> EngineRequest:
        del context_tokens, ask
        return _counting(open_message(call, model, generation_prompt=False))

    def reader(self, call: EngineCall, ask: Ask) -> ChunkReader:
        del ask
        return CountingReader(call)


def _counting(request: EngineRequest) -> EngineRequest:
    request.body["stream_options"]["continuous_usage_stats"] = True
    return request


def at_least(version: object, wanted: tuple[int, int, int]) -> bool:
    """Whether a program's version is known and not older. Anything odd counts as older."""
    found = _NUMBERS.match(version) if isinstance(version, str) else None
    return found is not None and tuple(int(part or 0) for part in found.groups()) >= wanted
