"""vLLM's dialect: token ids beside the text, prompts as ids. SGLang and the echo engine follow it."""

from collections.abc import Callable
from typing import Any

from panal.core.errors import EngineFailed
from panal.core.requests import Route
from panal.node.engines.dialect import (
    PATHS,
    TEMPLATE_FIELDS,
    Ask,
    ChunkReader,
    EngineRequest,
    as_chat_chunk,
    calls_tools,
    continuation_body,
    plain_delta,
    streamed,
)
from panal.node.engines.engine import Delta, EngineCall, Json
from panal.node.engines.text_chunks import TextChunks
from panal.protocol.messages import TokenUsage

OpenMessage = Callable[[EngineCall, str], EngineRequest]


class TokenIdsReader:
    """Chunks with ``token_ids`` in their choices and ``prompt_token_ids`` at the start."""

    def __init__(self, call: EngineCall, *, raw: bool) -> None:
        """``raw``: the completions route was asked, whatever the call's own route is."""
        self._route = call.route
        self._raw = raw
        self._prompt_tokens = 0
        self._client_wants_ids = bool(call.body.get("return_token_ids"))
        self._short = TextChunks(Route.COMPLETIONS if raw else call.route)

    def short(self, event: bytes) -> Delta | None:
        """See ChunkReader. Ids that the client asked for itself stay in its chunks."""
        return None if self._client_wants_ids else self._short.read(event)

    async def read(self, chunk: Json) -> Delta:
        ids, tokens = self._take_ids(chunk)
        if self._raw and self._route is Route.CHAT:
            chunk = as_chat_chunk(chunk)
        delta = plain_delta(chunk, self._route)
        if ids is not None:
            delta.token_ids = ids
            delta.tokens = tokens
        if delta.usage is None and self._prompt_tokens:
            delta.usage = TokenUsage(prompt_tokens=self._prompt_tokens)
            self._prompt_tokens = 0
        return delta

    def _take_ids(self, chunk: Json) -> tuple[list[int] | None, int]:
        """Remove the ids. Returns those of the first choice, and how many there were in all choices."""
        self._take_prompt(chunk)
        found: list[int] | None = None
        tokens = 0
        for choice in chunk.get("choices") or ():
            self._take_prompt(choice)
            ids = choice.get("token_ids") if self._client_wants_ids else choice.pop("token_ids", None)
            if not isinstance(ids, list):
                continue
            tokens += len(ids)
            found = found or []
            if not choice.get("index"):
                found += ids
        return found, tokens

    def _take_prompt(self, holder: Json) -> None:
        name = "prompt_token_ids"
        ids = holder.get(name) if self._client_wants_ids else holder.pop(name, None)
        if isinstance(ids, list):
            self._prompt_tokens = len(ids)


class TokenIdsDialect:
    """vLLM's options. Its raw route makes 16 tokens where no limit is given, so a resume always gives one.

    ``open_message``: how the rest of an answer that may call tools is asked for, None where it cannot be.
    """

    def __init__(self, open_message: OpenMessage | None = None) -> None:
        self._open_message = open_message

    def first(self, call: EngineCall, model: str) -> EngineRequest:
        body = streamed(call.body, model)
        return EngineRequest(PATHS[call.route], self._with_options(body, call))

    async def resumed(self, call: EngineCall, model: str, context_tokens: int, ask: Ask) -> EngineRequest:
        assert call.emitted is not None
        if self._in_message(call):
            assert self._open_message is not None
            request = self._open_message(call, model)
            return EngineRequest(
                request.path, self._with_options(request.body, call), nothing_left=request.nothing_left
            )
        body = self._with_options(continuation_body(call, model), call)
        path = PATHS[Route.COMPLETIONS]
        if body.get("max_tokens") == 0:
            return EngineRequest(path, body, nothing_left=True)
        emitted_ids = call.emitted.token_ids
        if emitted_ids is None:
            emitted_ids = await self._tokenize(
                {"model": model, "prompt": call.emitted.text, "add_special_tokens": False}, ask
            )
        prompt_ids = await self._prompt_ids(call, model, ask)
        body["prompt"] = prompt_ids + emitted_ids
        if "max_tokens" not in body and context_tokens:
            body["max_tokens"] = max(context_tokens - len(body["prompt"]), 1)
        return EngineRequest(path, body)

    def reader(self, call: EngineCall, ask: Ask) -> ChunkReader:
        del ask
        return TokenIdsReader(call, raw=call.emitted is not None and not self._in_message(call))

    def _in_message(self, call: EngineCall) -> bool:
        return self._open_message is not None and call.route is Route.CHAT and calls_tools(call.body)

    def _with_options(self, body: Json, call: EngineCall) -> Json:
        body["return_token_ids"] = True
        if call.cache_salt:
            body["cache_salt"] = call.cache_salt
        return body

    async def _prompt_ids(self, call: EngineCall, model: str, ask: Ask) -> list[int]:
        if call.route is Route.CHAT:
            wanted: Json = {name: call.body[name] for name in TEMPLATE_FIELDS if name in call.body}
            wanted.setdefault("add_generation_prompt", True)
            return await self._tokenize({**wanted, "model": model}, ask)
        prompt = only_prompt(call.body.get("prompt"))
        if isinstance(prompt, str):
            return await self._tokenize({"model": model, "prompt": prompt, "add_special_tokens": True}, ask)
        return prompt_as_ids(prompt)

    async def _tokenize(self, body: Json, ask: Ask) -> list[int]:
        answer = await ask("/tokenize", body)
        return prompt_as_ids(answer.get("tokens"))


def only_prompt(value: Any) -> Any:
    """The one prompt out of a list with a single text or a single list of ids; else the value itself."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        return value[0]
    return value


def prompt_as_ids(value: Any) -> list[int]:
    """A list of token ids. Raises EngineFailed for anything else: then nothing can be continued."""
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return value
    raise EngineFailed("the prompt of this answer cannot be rendered to token ids here")
