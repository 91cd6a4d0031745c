"""What clients ask, and the one right answer to each; what they got, and what that is worth."""

import json
import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from panal.node.engines.echo_answers import tool_calls

Json = dict[str, Any]

MARK = "zinnober-marke"
"""Stands in every prompt: no log may hold it."""
TEXTS = (
    "Familie: 👩‍👩‍👧‍👦, Flagge: 🇪🇸, Hand: 👍🏽, und wieder von vorn; ",
    "e\u0301cole nai\u0308ve – combining marks; ",
    "שלום עולם, مرحبا بالعالم, right to left; ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 and 日本語のテキスト; ",
)
DELAY_TOKEN_S = 0.02
RETRIABLE = frozenset({429, 502, 503, 504})


@dataclass(frozen=True)
class Question:
    """One request and its right answer. ``tools``: the answer is tool calls and no text."""

    path: str
    body: Json
    text: str
    finish: str
    resumable: bool = True
    tools: bool = False

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def kind(self) -> str:
        """What it asks for, in a word."""
        return "tool calls" if self.tools else "text" if self.resumable else "JSON"


def question(chance: random.Random) -> Question:
    """A question of some kind, streamed or whole, on one of the two routes."""
    numbers = chance.randrange(25, 70)
    whole = " ".join(str(number) for number in range(1, numbers + 1))
    kind = chance.choices(
        ["count", "text", "stop", "length", "tools", "schema"], weights=[40, 25, 12, 12, 6, 5]
    )[0]
    chat = kind in ("tools", "schema") or chance.random() < 0.7
    asked, answer, finish, more = f"count {numbers} {MARK}", whole, "stop", {}
    if kind == "text":
        asked = answer = f"{MARK} " + chance.choice(TEXTS) * chance.randrange(1, 4)
        asked = answer = answer.strip()
    elif kind == "stop":
        word = str(chance.randrange(20, numbers))
        more = {"stop": [word, "never said"]}
        answer = whole[: whole.index(word)]
    elif kind == "length":
        limit = chance.randrange(20, len(whole) - 1)
        more, answer, finish = {"max_tokens": limit}, whole[:limit], "length"
    elif kind == "tools":
        function = {"name": "weather", "parameters": {"type": "object"}}
        more = {"tools": [{"type": "function", "function": function}]}
        asked, answer, finish = f"use the tool {MARK}", "", "tool_calls"
    elif kind == "schema":
        more = {"response_format": {"type": "json_object"}}
    if not chat:
        # The answer to a raw prompt begins with a line feed, which counts as a token.
        answer = "\n" + answer if kind != "length" else ("\n" + whole)[: more["max_tokens"]]
    given = {"messages": [{"role": "user", "content": asked}]} if chat else {"prompt": asked}
    body = {"model": "echo", **given, **more, "x_echo": {"delay_token_s": DELAY_TOKEN_S}}
    if chance.random() < 0.7:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return Question(
        path="/v1/chat/completions" if chat else "/v1/completions",
        body=body,
        text=answer,
        finish=finish,
        resumable=kind not in ("tools", "schema"),
        tools=kind == "tools",
    )


class Verdict(StrEnum):
    """What an exchange is worth to its client."""

    EXACT = "exact"
    REFUSED = "refused"
    """Nothing of an answer, and an error that says: try again."""
    TOLD = "told"
    """A part, and an explicit error at its end."""
    BROKEN = "broken"
    """A part, and a connection that broke: no client takes that for an end."""
    WRONG = "wrong"
    """Anything else. Must never happen."""


@dataclass
class Exchange:
    """What a client saw of one request. Times are monotonic seconds."""

    question: Question
    asked_s: float
    status: int = 0
    ended_s: float = 0.0
    response_id: str = ""
    error_code: str = ""
    error_text: str = ""
    fault: str = ""
    text: str = ""
    usage: tuple[int, int] | None = None
    finishes: list[str] = field(default_factory=list)
    arguments: dict[int, str] = field(default_factory=dict)
    roles: int = 0
    usages: int = 0
    done: bool = False
    broken: bool = False
    longest_gap_s: float = 0.0

    def take(self, event: Json) -> None:
        """One event of the stream, or the whole answer."""
        if "error" in event:
            self.error_code = str(event["error"].get("code"))
            self.error_text = str(event["error"].get("message"))
            return
        if self.response_id and event["id"] != self.response_id:
            self.fault = "two ids in one answer"
        self.response_id = event["id"]
        usage = event.get("usage")
        if usage:
            self.usages += 1
            self.usage = (usage["prompt_tokens"], usage["completion_tokens"])
        for choice in event["choices"]:
            part = choice.get("delta") or choice.get("message") or {}
            self.roles += "role" in part
            self.text += part.get("content") or choice.get("text") or ""
            for number, call in enumerate(part.get("tool_calls") or ()):
                index = call.get("index", number)
                piece = call.get("function", {}).get("arguments") or ""
                self.arguments[index] = self.arguments.get(index, "") + piece
            if choice.get("finish_reason"):
                self.finishes.append(choice["finish_reason"])

    def verdict(self) -> Verdict:
        """Judge; ``fault`` then says what was wrong."""
        if not self.fault:
            self.fault = self._fault()
        if self.fault:
            return Verdict.WRONG
        if self.error_code and self.status != 200:
            return Verdict.REFUSED
        if self.error_code:
            return Verdict.TOLD
        return Verdict.BROKEN if self.broken else Verdict.EXACT

    def repeated(self) -> int:
        """Characters that are not the beginning of the right answer."""
        right = self.question.text
        same = 0
        while same < min(len(self.text), len(right)) and self.text[same] == right[same]:
            same += 1
        return len(self.text) - same

    def _fault(self) -> str:
        question = self.question
        if self.repeated():
            return f"not the right text: {self.text[-60:]!r}"
        if self.status != 200:
            known = self.status in RETRIABLE or self.broken
            return "" if known else f"status {self.status} {self.error_code}"
        if self.error_code or self.broken:
            return "an error and an end" if self.finishes or self.done else ""
        if self.text != question.text:
            return f"{len(self.text)} of {len(question.text)} characters, and an end"
        if self.finishes != [question.finish]:
            return f"finish {self.finishes} instead of {question.finish}"
        if question.tools and not self._tools_right():
            return f"other arguments: {self.arguments}"
        if self.usages != 1 or (question.stream and not self.done):
            return f"{self.usages} usage blocks, done: {self.done}"
        if question.stream and question.path.startswith("/v1/chat") and self.roles != 1:
            return f"{self.roles} roles"
        return ""

    def _tools_right(self) -> bool:
        calls = tool_calls(self.question.body["tools"])
        right = {number: call["arguments"] for number, call in enumerate(calls)}
        return self.arguments == right


def events_of(data: bytes) -> list[Json | None]:
    """The events of whole lines; None for ``[DONE]``."""
    found: list[Json | None] = []
    for line in data.split(b"\n"):
        if line.startswith(b"data: "):
            content = line[6:].strip()
            found.append(None if content == b"[DONE]" else json.loads(content))
    return found
