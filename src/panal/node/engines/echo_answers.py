"""What the echo engine says: a pure function of the prompt, with one token per byte of UTF-8."""

import hashlib
import re
import struct
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

ASSISTANT = "\n<assistant>"
_COUNT = re.compile(r"\s*count (\d{1,6})\b")
DIMENSIONS_DEFAULT = 8


def text_of(content: Any) -> str:
    """A message's content as text; of content parts the texts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return ""


def render(messages: list[Json], *, open_message: bool = False) -> str:
    """The engine's chat template. ``open_message``: the last message is the assistant's and goes on."""
    if open_message:
        return render(messages[:-1]) + text_of(messages[-1].get("content"))
    lines = [f"<{message.get('role', 'user')}>{text_of(message.get('content'))}" for message in messages]
    return "\n".join(lines) + ASSISTANT


def reply_to(question: str) -> str:
    """``count N`` gives the numbers from 1 to N; anything else is said again."""
    match = _COUNT.match(question)
    if match is None:
        return question
    return " ".join(str(number) for number in range(1, int(match.group(1)) + 1))


@dataclass(frozen=True, slots=True)
class Continuation:
    """The whole answer of a prompt in bytes, and how many of them the prompt already holds."""

    answer: bytes
    done: int


def continuation(prompt: bytes, *, chat: bool) -> Continuation:
    """What is still to be said after this prompt.

    A chat prompt holds what was said after the last ``<assistant>``. The answer to a raw prompt begins
    with a line feed, and what follows the prompt's first one was already said.
    """
    if chat or ASSISTANT.encode() in prompt:
        before, _, said = prompt.rpartition(ASSISTANT.encode())
        question = before.rpartition(b"<user>")[2].decode("utf-8", "replace")
        return Continuation(reply_to(question).encode(), len(said))
    first_line, line_feed, said = prompt.partition(b"\n")
    answer = "\n" + reply_to(first_line.decode("utf-8", "replace"))
    return Continuation(answer.encode(), len(line_feed) + len(said))


def embedding(text: str, dimensions: int) -> list[float]:
    """A vector of unit-free numbers between -1 and 1, equal for equal texts."""
    numbers: list[float] = []
    block = 0
    while len(numbers) < dimensions:
        digest = hashlib.sha256(f"{block}:{text}".encode()).digest()
        numbers += [value / 2**31 for value in struct.unpack("<8i", digest)]
        block += 1
    return numbers[:dimensions]


def tool_calls(tools: list[Json]) -> list[Json]:
    """Two calls of the first two tools (or one tool twice): one with arguments, one without any."""
    names = [str(tool.get("function", {}).get("name", "tool")) for tool in tools]
    return [
        {"id": "call_echo_0", "name": names[0], "arguments": '{"city": "Zürich 🏔", "days": [1, 2]}'},
        {"id": "call_echo_1", "name": names[-1], "arguments": ""},
    ]


def tool_deltas(tools: list[Json]) -> list[Json]:
    """The deltas of both calls, interleaved, the arguments cut at every character."""
    calls = tool_calls(tools)
    deltas: list[Json] = [
        {
            "tool_calls": [
                {
                    "index": index,
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": ""},
                }
            ]
        }
        for index, call in enumerate(calls)
    ]
    for position in range(max(len(call["arguments"]) for call in calls)):
        for index, call in enumerate(calls):
            piece = call["arguments"][position : position + 1]
            if piece:
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return deltas


def wants_tools(body: Json) -> bool:
    """Tools are called when there are some and the last message speaks of a tool."""
    messages = body.get("messages")
    if not body.get("tools") or not isinstance(messages, list) or not messages:
        return False
    return "tool" in text_of(messages[-1].get("content"))
