"""Deltas of a pretend engine with one token per byte, and gateways that put attempts together."""

from dataclasses import replace
from typing import Any

import msgspec

from panal.core.requests import Route
from panal.node.answer import AnswerWriter
from panal.node.answer_plan import AnswerPlan
from panal.node.engines.engine import Delta
from panal.protocol.messages import Emitted, Event, TokenUsage
from tests.support.node_gateway import chunks_of

PROMPT_TOKENS = 7


def plan(**changes: Any) -> AnswerPlan:
    first = AnswerPlan(
        route=Route.CHAT,
        response_id="chatcmpl-1",
        created_utc_s=1_800_000_000,
        model="m",
        stream=True,
        include_usage=True,
    )
    return replace(first, **changes)


def deltas_of(
    text: str, *, done: int = 0, finish: str | None = "stop", ids: bool = True, route: Route = Route.CHAT
) -> list[Delta]:
    """Tokens ``done`` and on of an answer: ids at once, text when a character is whole."""
    data = text.encode()
    found: list[Delta] = []
    if not done and route is Route.CHAT:
        choice: Any = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        found.append(Delta(chunk={"choices": [choice]}))
    pending = b""
    for position in range(done, len(data)):
        pending += data[position : position + 1]
        try:
            piece = pending.decode()
            pending = b""
        except UnicodeDecodeError:
            piece = ""
        found.append(
            Delta(
                chunk={"choices": [chunk_choice(route, piece)]},
                text=piece,
                token_ids=[data[position]] if ids else None,
                tokens=1,
            )
        )
    if finish:
        end = chunk_choice(route, "")
        end["finish_reason"] = finish
        found.append(Delta(chunk={"choices": [end]}, finish=finish))
        usage = TokenUsage(prompt_tokens=PROMPT_TOKENS + done, completion_tokens=len(data) - done)
        found.append(Delta(usage=usage))
    return found


def chunk_choice(route: Route, text: str) -> dict[str, Any]:
    if route is Route.CHAT:
        return {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return {"index": 0, "text": text, "finish_reason": None}


def write_all(writer: AnswerWriter, deltas: list[Delta]) -> list[Event]:
    events = []
    for step, delta in enumerate(deltas):
        event = writer.write(delta, step * 0.01)
        if event is not None:
            events.append(event)
        if writer.done:
            break
    return events


def emitted_of(events: list[Event], before: Emitted | None = None) -> Emitted:
    """The gateway's bookkeeping."""
    old = before or Emitted(token_ids=[])
    known = old.token_ids is not None and all(event.token_ids is not None for event in events if event.text)
    ids = [token for event in events for token in event.token_ids or ()]
    usages = [event.usage for event in events if event.usage is not None]
    return Emitted(
        text=old.text + "".join(event.text for event in events),
        token_ids=(old.token_ids or []) + ids if known else None,
        prompt_tokens=old.prompt_tokens or (usages[-1].prompt_tokens if usages else 0),
        completion_tokens=old.completion_tokens + sum(event.tokens for event in events),
        role_sent=old.role_sent or any(event.role for event in events),
    )


def data_of(events: list[Event]) -> bytes:
    return b"".join(event.data for event in events)


def objects_of(data: bytes) -> list[Any]:
    return [chunk for chunk in chunks_of(data) if chunk != "[DONE]"]


def whole_of(event: Event) -> Any:
    return msgspec.json.decode(event.data)
