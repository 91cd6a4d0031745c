"""llama.cpp's dialect, of the embedded engine and of its server program.

Its streams keep back tokens that end within a character, and then name only the last of them; the
running count betrays the gap, and the tokenizer fills it where that is certain.
"""

from typing import Any

from panal.core.requests import Route
from panal.node.engines.dialect import (
    PATHS,
    TEMPLATE_FIELDS,
    Ask,
    ChunkReader,
    EngineRequest,
    as_chat_chunk,
    continuation_body,
    plain_delta,
    streamed,
)
from panal.node.engines.engine import Delta, EngineCall, Json
from panal.node.engines.token_ids import only_prompt, prompt_as_ids
from panal.protocol.messages import TokenUsage


def ids_can_be_had(body: Json) -> bool:
    """llama.cpp refuses log probabilities, where its ids are, together with tools; ids of n > 1 mix."""
    return not body.get("tools") and not body.get("functions") and body.get("n") in (None, 1)


class LlamaCppReader:
    """Chunks with ``timings``, and ids in ``logprobs`` (chat) or ``__verbose`` (completions)."""

    def __init__(self, call: EngineCall, ask: Ask) -> None:
        self._route = call.route
        self._resumed = call.emitted is not None
        self._ask = ask
        self._client_body = call.body
        self._client_wants_logprobs = bool(call.body.get("logprobs")) and not self._resumed
        self._client_top = call.body.get("top_logprobs")
        self._ids_known = ids_can_be_had(call.body)
        self._seen = 0
        self._prompt_told = False

    def short(self, event: bytes) -> Delta | None:
        """Never: its chunks always carry more than text."""
        del event
        return None

    async def read(self, chunk: Json) -> Delta:
        timings = self._taken(chunk, "timings", "timings_per_token") or {}
        verbose = self._taken(chunk, "__verbose", "verbose") or {}
        ids = self._ids_of(chunk, verbose)
        if self._resumed and self._route is Route.CHAT:
            chunk = as_chat_chunk(chunk)
        delta = plain_delta(chunk, self._route)
        if delta.chunk is not None:
            await self._fill_in(delta, ids, timings.get("predicted_n") or verbose.get("tokens_predicted"))
        if delta.usage is None and not self._prompt_told and "prompt_n" in timings:
            self._prompt_told = True
            cached = timings.get("cache_n", 0)
            delta.usage = TokenUsage(prompt_tokens=timings["prompt_n"] + cached, cached_tokens=cached)
        return delta

    def _taken(self, chunk: Json, name: str, option: str) -> Any:
        """An extra of the engine; it stays in the chunk if the client itself asked for it."""
        return chunk.get(name) if self._client_body.get(option) else chunk.pop(name, None)

    def _ids_of(self, chunk: Json, verbose: Json) -> list[int]:
        """Take the ids out, and what only panal asked for with them."""
        ids = list(verbose.get("tokens") or ())
        for choice in chunk.get("choices") or ():
            logprobs = choice.get("logprobs")
            entries = logprobs.get("content") if isinstance(logprobs, dict) else None
            if self._route is Route.CHAT and not self._resumed:
                ids += [entry["id"] for entry in entries or () if isinstance(entry.get("id"), int)]
            if not self._client_wants_logprobs:
                choice.pop("logprobs", None)
            elif self._client_top is None:
                for entry in entries or ():
                    entry["top_logprobs"] = []
        return ids

    async def _fill_in(self, delta: Delta, ids: list[int], count: int | None) -> None:
        """Set ids and number of tokens. A gap in the ids is closed from the text, or ends all knowing."""
        if not delta.text or delta.opaque:
            return
        new = count - self._seen if count else max(len(ids), 1)
        self._seen += new
        delta.tokens = new
        if not self._ids_known:
            return
        if len(ids) != new:
            ids = await self._recovered(delta.text, ids, new)
        self._ids_known = len(ids) == new
        delta.token_ids = ids if self._ids_known else None

    async def _recovered(self, text: str, ids: list[int], new: int) -> list[int]:
        answer = await self._ask("/tokenize", {"content": text, "add_special": False, "parse_special": False})
        found = prompt_as_ids(answer.get("tokens"))
        fits = len(found) == new and found[len(found) - len(ids) :] == ids
        return found if fits else []


class LlamaCppDialect:
    """llama.cpp's options. Its raw route has no limit of tokens of its own."""

    def first(self, call: EngineCall, model: str) -> EngineRequest:
        body = streamed(call.body, model)
        body["timings_per_token"] = True
        if call.route is Route.COMPLETIONS:
            self._ask_for_ids(body)
        elif ids_can_be_had(call.body):
            body["logprobs"] = True
            body["top_logprobs"] = max(body.get("top_logprobs") or 1, 1)
        return EngineRequest(PATHS[call.route], body)

    async def resumed(self, call: EngineCall, model: str, context_tokens: int, ask: Ask) -> EngineRequest:
        del context_tokens
        assert call.emitted is not None
        body = continuation_body(call, model)
        body["timings_per_token"] = True
        self._ask_for_ids(body)
        left = body.get("n_predict")
        if isinstance(left, int) and left > 0:
            body["n_predict"] = max(left - call.emitted.completion_tokens, 0)
        path = PATHS[Route.COMPLETIONS]
        if body.get("max_tokens") == 0 or body.get("n_predict") == 0:
            return EngineRequest(path, body, nothing_left=True)
        emitted_ids = call.emitted.token_ids
        if emitted_ids is None:
            emitted_ids = await self._tokenize(call.emitted.text, ask, special=False)
        body["prompt"] = await self._prompt_ids(call, ask) + emitted_ids
        return EngineRequest(path, body)

    def reader(self, call: EngineCall, ask: Ask) -> ChunkReader:
        return LlamaCppReader(call, ask)

    def _ask_for_ids(self, body: Json) -> None:
        body["verbose"] = True
        body["return_tokens"] = True

    async def _prompt_ids(self, call: EngineCall, ask: Ask) -> list[int]:
        if call.route is Route.CHAT:
            wanted = {name: call.body[name] for name in TEMPLATE_FIELDS if name in call.body}
            rendered = await ask("/apply-template", wanted)
            return await self._tokenize(str(rendered.get("prompt", "")), ask, special=True)
        prompt = only_prompt(call.body.get("prompt"))
        if isinstance(prompt, str):
            return await self._tokenize(prompt, ask, special=True)
        return prompt_as_ids(prompt)

    async def _tokenize(self, text: str, ask: Ask, *, special: bool) -> list[int]:
        answer = await ask("/tokenize", {"content": text, "add_special": special, "parse_special": special})
        return prompt_as_ids(answer.get("tokens"))
