"""The short way for the commonest chunk by far: text of the only choice and nothing else.

Such a chunk is decoded into a fixed shape, several times faster than into dictionaries. Whatever does not
fit exactly - a role, a finish, a tool call, usage, a field that nobody knows - takes the long way.
"""

from typing import Literal

import msgspec

from panal.core.requests import Route
from panal.node.engines.engine import Delta

MISSES_MAX = 4
"""An engine whose chunks never fit is not tried for ever."""


class _Delta(msgspec.Struct, forbid_unknown_fields=True):
    content: str
    reasoning: None = None
    reasoning_content: None = None
    refusal: None = None
    function_call: None = None
    tool_calls: None = None


class _ChatChoice(msgspec.Struct, forbid_unknown_fields=True):
    delta: _Delta
    index: Literal[0] = 0
    finish_reason: None = None
    stop_reason: None = None
    logprobs: None = None
    token_ids: list[int] | None = None


class _TextChoice(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    index: Literal[0] = 0
    finish_reason: None = None
    stop_reason: None = None
    logprobs: None = None
    prompt_logprobs: None = None
    prompt_token_ids: None = None
    token_ids: list[int] | None = None


class _Chunk(msgspec.Struct, forbid_unknown_fields=True):
    id: str = ""
    object: str = ""
    created: int = 0
    model: str = ""
    system_fingerprint: str | None = None
    usage: None = None


class _ChatChunk(_Chunk, forbid_unknown_fields=True, kw_only=True):
    choices: tuple[_ChatChoice]


class _TextChunk(_Chunk, forbid_unknown_fields=True, kw_only=True):
    choices: tuple[_TextChoice]


_chat_decoder = msgspec.json.Decoder(_ChatChunk)
_text_decoder = msgspec.json.Decoder(_TextChunk)


class TextChunks:
    """Reads the commonest chunks of one answer. ``route`` is the engine's route that was called."""

    def __init__(self, route: Route) -> None:
        self._chat = route is Route.CHAT
        self._misses = 0

    def read(self, event: bytes) -> Delta | None:
        """The delta, or None where the chunk must take the long way."""
        if self._misses >= MISSES_MAX:
            return None
        try:
            if self._chat:
                chat_choice = _chat_decoder.decode(event).choices[0]
                text, ids = chat_choice.delta.content, chat_choice.token_ids
            else:
                text_choice = _text_decoder.decode(event).choices[0]
                text, ids = text_choice.text, text_choice.token_ids
        except (msgspec.DecodeError, ValueError):
            self._misses += 1
            return None
        self._misses = 0
        tokens = len(ids) if ids is not None else bool(text)
        return Delta(text=text, token_ids=ids, tokens=int(tokens), plain=True)
