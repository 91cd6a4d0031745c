"""Deltas to client bytes: a stream of chunks, or one whole JSON. Pure."""

from typing import Any, Protocol

import msgspec

from panal.core.errors import EngineFailed
from panal.core.requests import Route
from panal.node.answer_plan import AnswerPlan
from panal.node.engines.engine import Json
from panal.protocol.messages import TokenUsage
from panal.protocol.openai import chunks

WHOLE_BYTES_MAX = 16 * 1024 * 1024


class AnswerFormat(Protocol):
    """Makes the bytes of one answer."""

    role_sent: bool
    """The client has its first role chunk, or will have the role inside the whole answer."""

    def chunk(self, chunk: Json) -> bytes:
        """A chunk of the engine. Returns what may go out now."""
        ...

    def text(self, text: str) -> bytes:
        """Text of the first choice and nothing else."""
        ...

    def finish(self, reason: str) -> bytes:
        """The agent itself ends the first choice."""
        ...

    def end(self, usage: TokenUsage, raw_usage: Json) -> bytes:
        """The last bytes of a complete answer."""
        ...


class StreamFormat:
    """Server-sent events: every chunk as it comes, one identity, one role for each choice."""

    def __init__(self, plan: AnswerPlan) -> None:
        self._plan = plan
        self._chat = plan.route is Route.CHAT
        self._identity: Json = {
            "id": plan.response_id,
            "object": chunks.CHUNK_OBJECTS[plan.route],
            "created": plan.created_utc_s,
            "model": plan.model,
        }
        self.role_sent = plan.emitted is not None and plan.emitted.role_sent
        self._roles = {0} if self.role_sent else set()
        self._text_head = b""
        self._text_tail = b""

    def text(self, text: str) -> bytes:
        before = b""
        if self._chat and 0 not in self._roles:
            before = self._settle_role({"index": 0, "delta": {}})
        if not self._text_head:
            self._make_text_frame()
        return before + self._text_head + msgspec.json.encode(text) + self._text_tail

    def _make_text_frame(self) -> None:
        """What stands before and after the text of every plain chunk is the same all along."""
        mark = "\ue000"
        choice = {**chunks.text_choice(self._plan.route, mark, None), "logprobs": None}
        whole = chunks.event({**self._identity, "choices": [choice]})
        self._text_head, self._text_tail = whole.rsplit(msgspec.json.encode(mark), 1)

    def chunk(self, chunk: Json) -> bytes:
        before = b""
        kept = []
        for choice in chunk["choices"]:
            if self._chat:
                before += self._settle_role(choice)
            if _says_something(choice):
                kept.append(choice)
        if not kept:
            return before
        chunk["choices"] = kept
        fingerprint = chunk.get("system_fingerprint")
        if fingerprint and "system_fingerprint" not in self._identity:
            self._identity["system_fingerprint"] = fingerprint
        chunk.update(self._identity)
        return before + chunks.event(chunk)

    def _settle_role(self, choice: Json) -> bytes:
        """Exactly one role for each choice: kept in the engine's own chunk of it, else written before."""
        index = choice.get("index", 0)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice["delta"] = {}
        if index in self._roles:
            delta.pop("role", None)
            return b""
        self._roles.add(index)
        if index == 0:
            self.role_sent = True
        alone = "role" in delta and not delta.get("content") and not choice.get("finish_reason")
        if alone:
            delta["role"] = "assistant"
            delta["content"] = ""
            return b""
        delta.pop("role", None)
        return chunks.event({**self._identity, "choices": [chunks.role_choice(index)]})

    def finish(self, reason: str) -> bytes:
        choice = chunks.text_choice(self._plan.route, "", reason)
        before = self._settle_role(choice) if self._chat else b""
        return before + chunks.event({**self._identity, "choices": [choice]})

    def end(self, usage: TokenUsage, raw_usage: Json) -> bytes:
        if not self._plan.include_usage:
            return chunks.DONE
        body = {**self._identity, "choices": [], "usage": chunks.usage_body(usage, raw_usage)}
        return chunks.event(body) + chunks.DONE


def _says_something(choice: Json) -> bool:
    """Whether a choice is worth a chunk; engines send empty ones while a character is incomplete."""
    if choice.get("finish_reason") or choice.get("logprobs") or choice.get("text"):
        return True
    delta = choice.get("delta")
    if not delta:
        return False
    return any(value not in (None, "") or name == "role" for name, value in delta.items())


class WholeFormat:
    """One JSON answer, put together from the chunks of a stream."""

    def __init__(self, plan: AnswerPlan) -> None:
        self._plan = plan
        self._rest: Json = {}
        self._choices: dict[int, _WholeChoice] = {}
        self._bytes = 0
        self.role_sent = True
        if plan.emitted is not None:
            self._choice(0).text.append(plan.emitted.text)

    def chunk(self, chunk: Json) -> bytes:
        for choice in chunk["choices"]:
            self._grow(self._choice(choice.get("index", 0)).add(choice))
        for name, value in chunk.items():
            if name != "choices" and value is not None:
                self._rest[name] = value
        return b""

    def text(self, text: str) -> bytes:
        self._choice(0).text.append(text)
        self._grow(len(text))
        return b""

    def finish(self, reason: str) -> bytes:
        self._choice(0).finish = reason
        return b""

    def end(self, usage: TokenUsage, raw_usage: Json) -> bytes:
        chat = self._plan.route is Route.CHAT
        body: Json = {
            **self._rest,
            "id": self._plan.response_id,
            "object": chunks.WHOLE_OBJECTS[self._plan.route],
            "created": self._plan.created_utc_s,
            "model": self._plan.model,
            "choices": [choice.body(index, chat) for index, choice in sorted(self._choices.items())],
            "usage": chunks.usage_body(usage, raw_usage),
        }
        return msgspec.json.encode(body)

    def _grow(self, added_bytes: int) -> None:
        self._bytes += added_bytes
        if self._bytes > WHOLE_BYTES_MAX:
            raise EngineFailed("the engine's answer is too large")

    def _choice(self, index: int) -> "_WholeChoice":
        found = self._choices.get(index)
        if found is None:
            found = self._choices[index] = _WholeChoice()
        return found


class _WholeChoice:
    """One choice while its pieces arrive."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.finish: str | None = None
        self._message: Json = {}
        self._rest: Json = {}
        self._calls: list[Json] = []

    def add(self, choice: Json) -> int:
        """Take one piece; returns about how many bytes it adds."""
        for name, value in choice.items():
            if value is None or name == "index":
                continue
            if name == "finish_reason":
                self.finish = value
            elif name == "text":
                self.text.append(value)
            elif name == "delta":
                self._add_delta(value)
            else:
                self._rest[name] = merged(self._rest.get(name), value)
        return 64 + sum(len(str(value)) for value in choice.values())

    def _add_delta(self, delta: Json) -> None:
        for name, value in delta.items():
            if value is None or name == "role":
                continue
            if name == "content" and isinstance(value, str):
                self.text.append(value)
            elif name == "tool_calls":
                for call in value:
                    self._add_call(call)
            else:
                self._message[name] = merged(self._message.get(name), value)

    def _add_call(self, piece: Json) -> None:
        """Pieces of one call share an index; without one, a piece that has no id belongs to the last call."""
        index = piece.get("index")
        call: Json | None = None
        if index is not None:
            call = next((known for known in self._calls if known.get("index") == index), None)
        elif self._calls and not piece.get("id"):
            call = self._calls[-1]
        if call is None:
            call = {"index": index, "type": "function", "function": {"name": "", "arguments": ""}}
            self._calls.append(call)
        for name, value in piece.items():
            if name == "function" and isinstance(value, dict):
                function = call["function"]
                function["name"] = function["name"] or value.get("name") or ""
                function["arguments"] += value.get("arguments") or ""
            elif value is not None and (name != "id" or not call.get("id")):
                call[name] = value

    def body(self, index: int, chat: bool) -> Json:
        text = "".join(self.text)
        if not chat:
            return {
                "index": index,
                "text": text,
                "logprobs": None,
                **self._rest,
                "finish_reason": self.finish,
            }
        message: Json = {"role": "assistant", "content": text, **self._message}
        if self._calls:
            message["content"] = text or None
            message["tool_calls"] = [
                {name: value for name, value in call.items() if name != "index"} for call in self._calls
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            **self._rest,
            "finish_reason": self.finish,
        }


def merged(old: Any, new: Any) -> Any:
    """Pieces of a streamed value together: texts and lists grow, objects field by field, others replace."""
    if old is None:
        return new
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    if isinstance(old, list) and isinstance(new, list):
        return old + new
    if isinstance(old, dict) and isinstance(new, dict):
        grown = dict(old)
        for name, value in new.items():
            grown[name] = merged(grown.get(name), value)
        return grown
    return new
