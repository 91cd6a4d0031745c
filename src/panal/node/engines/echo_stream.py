"""One answer of the echo engine, token by token, with the faults that were asked for."""

import asyncio
import codecs
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from panal.node.engines.dialect import tokens_max
from panal.node.engines.echo_answers import continuation, render, tool_calls, tool_deltas, wants_tools
from panal.node.engines.echo_http import Exchange
from panal.node.engines.engine import Json
from panal.node.stops import StopMatcher, stop_list

CREATED_UTC_S = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Knobs:
    """How one answer misbehaves; counts are tokens, None means never."""

    delay_first_s: float = 0.0
    delay_token_s: float = 0.0
    status: int = 0
    stop_after: int | None = None
    close_after: int | None = None
    freeze_after: int | None = None
    abort_after: int | None = None
    split_bytes: int = 0
    crlf: bool = False
    usage: str = ""
    usage_delay_s: float = 0.0
    extra: Json | None = None
    echo_body: bool = False
    also_resumed: bool = False

    @classmethod
    def of(cls, body: Json, delay_first_s: float, delay_token_s: float) -> "Knobs":
        """The knobs of a body over the engine's own; unknown ones are an error of the test."""
        given = body.get("x_echo")
        base: Json = {"delay_first_s": delay_first_s, "delay_token_s": delay_token_s}
        return cls(**{**base, **given}) if isinstance(given, dict) else cls(**base)


def prompt_bytes(body: Json, *, chat: bool) -> bytes | None:
    """The prompt as tokens, or None where there is none."""
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            return None
        return render(messages, open_message=bool(body.get("continue_final_message"))).encode()
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt.encode()
    if isinstance(prompt, list) and all(isinstance(item, int) and 0 <= item < 256 for item in prompt):
        return bytes(prompt)
    return None


@dataclass(slots=True)
class Step:
    """One token and the text that it completes; ``finish`` with the last one."""

    token: int
    text: str
    finish: str | None = None


class EchoAnswer:
    """One answer. ``room_tokens`` is what the context leaves, None without a limit."""

    def __init__(
        self, body: Json, prompt: bytes, knobs: Knobs, model: str, *, chat: bool, room_tokens: int | None
    ) -> None:
        self._body = body
        self._prompt = prompt
        self._knobs = knobs
        self._chat = chat
        self._made = 0
        given = body.get("n")
        self._choices = given if isinstance(given, int) and given > 1 else 1
        self._base: Json = {
            "id": "chatcmpl-echo" if chat else "cmpl-echo",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": CREATED_UTC_S,
            "model": model,
        }
        plan = continuation(prompt, chat=chat)
        if knobs.echo_body:
            plan = type(plan)(msgspec.json.encode(body), plan.done)
        self._resumed = plan.done > 0
        self._rest = plan.answer[plan.done :]
        limits = [limit for limit in (tokens_max(body), room_tokens) if limit is not None]
        self._limit = min(limits) if limits else None

    async def steps(self) -> AsyncIterator[Step]:
        """The tokens in time; stop strings end the text as a real engine does, held back until sure."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        matcher = StopMatcher(stop_list(self._body.get("stop")))
        tokens = self._rest if self._limit is None else self._rest[: self._limit]
        natural = "stop" if len(tokens) == len(self._rest) else "length"
        await asyncio.sleep(self._knobs.delay_first_s)
        for position, token in enumerate(tokens):
            await self._faults(position)
            if position == self._knobs.abort_after and self._strikes:
                yield Step(-1, "", "abort")
                return
            if position and self._knobs.delay_token_s:
                await asyncio.sleep(self._knobs.delay_token_s)
            verdict = matcher.feed(decoder.decode(bytes([token])))
            last = position == len(tokens) - 1
            safe = len(matcher.held) if last and not verdict.hit else verdict.safe
            text = matcher.held[:safe]
            matcher.release(safe)
            self._made += 1
            if verdict.hit or last:
                yield Step(token, text, "stop" if verdict.hit else natural)
                return
            yield Step(token, text)
        yield Step(-1, "", natural)

    @property
    def _strikes(self) -> bool:
        """Whether faults are for this answer."""
        return not self._resumed or self._knobs.also_resumed

    async def _faults(self, position: int) -> None:
        knobs = self._knobs
        if not self._strikes:
            return
        if position == knobs.freeze_after:
            await asyncio.Event().wait()
        if position == knobs.close_after:
            raise _HangUpError
        if position == knobs.stop_after:
            raise _BreakOffError

    async def stream(self, exchange: Exchange) -> None:
        """Send the answer as events."""
        exchange.begin_events()
        try:
            if self._chat and wants_tools(self._body):
                await self._send_tools(exchange)
            else:
                await self._send_text(exchange)
            await self._send_end(exchange)
        except _HangUpError:
            exchange.hang_up()
            return
        except _BreakOffError:
            pass
        exchange.end_events()

    async def _send_end(self, exchange: Exchange) -> None:
        """The usage, at the time and place that was asked for, and ``[DONE]``."""
        place = self._knobs.usage
        told = self._include_usage and place != "finish"
        usage = msgspec.json.encode({**self._base, "choices": [], "usage": self._usage()})
        if told and self._knobs.usage_delay_s:
            await asyncio.sleep(self._knobs.usage_delay_s)
        if told and place == "with_done":
            await self._event(exchange, usage + b"\n\ndata: [DONE]")
            return
        if told and place != "after_done":
            await self._event(exchange, usage)
        await self._event(exchange, b"[DONE]")
        if told and place == "after_done":
            await self._event(exchange, usage)

    async def _send_text(self, exchange: Exchange) -> None:
        first = True
        async for step in self.steps():
            if first:
                await self._send_first(exchange)
                first = False
            for index in range(self._choices):
                chunk: Json = {**self._base, "choices": [{**self._choice(step), "index": index}]}
                if self._usage_each_time or (self._knobs.usage == "finish" and step.finish):
                    chunk["usage"] = self._usage()
                await self._send(exchange, chunk)

    async def _send_first(self, exchange: Exchange) -> None:
        """vLLM's first chat chunk: the role, and the prompt's ids where they are asked for."""
        if not self._chat:
            return
        for index in range(self._choices):
            delta = {"role": "assistant", "content": ""}
            choice: Json = {"index": index, "delta": delta, "finish_reason": None}
            chunk: Json = {**self._base, "choices": [choice]}
            if self._wants_ids:
                chunk["prompt_token_ids"] = list(self._prompt)
            await self._send(exchange, chunk)

    def _choice(self, step: Step) -> Json:
        choice: Json = {"index": 0, "finish_reason": step.finish, "logprobs": None}
        if self._chat:
            delta: Json = {"content": step.text}
            if self._knobs.extra is not None and self._made == 1:
                delta["x_reply"] = self._knobs.extra
            choice["delta"] = delta
        else:
            choice["text"] = step.text
        if self._wants_ids:
            choice["token_ids"] = [step.token] if step.token >= 0 else []
            if not self._chat and self._made == 1:
                choice["prompt_token_ids"] = list(self._prompt)
        return choice

    async def _send_tools(self, exchange: Exchange) -> None:
        await asyncio.sleep(self._knobs.delay_first_s)
        await self._send_first(exchange)
        for position, delta in enumerate(tool_deltas(self._body["tools"])):
            await self._faults(position)
            await asyncio.sleep(self._knobs.delay_token_s)
            self._made += 1
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            await self._send(exchange, {**self._base, "choices": [choice]})
        choice = {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
        last = {"usage": self._usage()} if self._knobs.usage == "finish" else {}
        await self._send(exchange, {**self._base, "choices": [choice], **last})

    async def _send(self, exchange: Exchange, chunk: Json) -> None:
        await self._event(exchange, msgspec.json.encode(chunk))

    async def _event(self, exchange: Exchange, data: bytes) -> None:
        line_end = b"\r\n" if self._knobs.crlf else b"\n"
        await exchange.send(b"data: " + data + line_end + line_end, self._knobs.split_bytes)

    @property
    def _wants_ids(self) -> bool:
        return bool(self._body.get("return_token_ids"))

    @property
    def _usage_each_time(self) -> bool:
        options = self._body.get("stream_options")
        asked = isinstance(options, dict) and bool(options.get("continuous_usage_stats"))
        return asked or self._knobs.usage == "cumulative"

    @property
    def _include_usage(self) -> bool:
        options = self._body.get("stream_options")
        asked = isinstance(options, dict) and bool(options.get("include_usage"))
        return asked and self._knobs.usage != "omit"

    def _usage(self) -> Json:
        made = 1 if self._knobs.usage == "lie" else self._made * self._choices
        prompt = len(self._prompt)
        return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}

    async def whole(self) -> Json:
        """The answer as one JSON."""
        finish: Any = "stop"
        text = ""
        message: Json = {"role": "assistant"}
        if self._chat and wants_tools(self._body):
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in tool_calls(self._body["tools"])
            ]
            finish = "tool_calls"
        else:
            async for step in self.steps():
                text += step.text
                finish = step.finish or finish
        message["content"] = text or None
        if self._knobs.extra is not None:
            message["x_reply"] = self._knobs.extra
        choice: Json = {"index": 0, "finish_reason": finish, "logprobs": None}
        choice.update({"message": message} if self._chat else {"text": text})
        kind = "chat.completion" if self._chat else "text_completion"
        choices = [{**choice, "index": index} for index in range(self._choices)]
        return {**self._base, "object": kind, "choices": choices, "usage": self._usage()}


class _HangUpError(Exception):
    """The engine hangs up now."""


class _BreakOffError(Exception):
    """The engine ends its answer now, without a finish."""
