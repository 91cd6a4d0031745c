"""An OpenAI-compatible engine that computes nothing: tokens at a given pace, each with the time in it.

    python -m panal.bench.engine [--port 0] [--model bench]

It says ``{"port": N}`` on its output. A request's field ``bench_pace_ms`` is the time before the first
token and between tokens; without it tokens come as fast as they can, some in each turn of the loop.
"""

import argparse
import asyncio
import re
import sys
from collections.abc import Callable
from typing import Any, cast

import msgspec

from panal.bench.stamps import PACE_FIELD, WIDTH, now_s, stamp

LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
FLAT_TOKENS_A_TURN = 16
TOKENS_DEFAULT = 16
BUFFER_BYTES_MAX = 128 * 1024
_decode = msgspec.json.Decoder().decode

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Texts:
    """The bytes of one model's chunks, cut where a stamp goes in."""

    def __init__(self, model: str) -> None:
        common = (
            '{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,'
            f'"model":"{model}","choices":'
        )
        self._role = _event(common + '[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}')
        before, after = f'data: {common}[{{"index":0,"delta":{{"content":"', '"},"finish_reason":null}]}\n\n'
        self.first = _cut(before + "^", after, 2 * WIDTH + 2)
        self.next = _cut(before + "@", after, WIDTH + 1)
        self._end = _event(common + '[{"index":0,"delta":{},"finish_reason":"length"}]}')
        self._usage = common + '[],"usage":'
        self.models = _json({"object": "list", "data": [{"id": model, "object": "model"}]})
        self._model = model

    def token(self, asked_s: float | None) -> bytes:
        """One token; the first of an answer is given the time at which the answer was asked for."""
        if asked_s is None:
            return b"%b%b %b" % (self.next[0], stamp(now_s()), self.next[1])
        return b"%b%b%b@%b %b" % (self._role, self.first[0], stamp(asked_s), stamp(now_s()), self.first[1])

    def end(self, tokens: int) -> bytes:
        counts = f'{{"prompt_tokens":64,"completion_tokens":{tokens},"total_tokens":{64 + tokens}}}'
        usage = _event(self._usage + counts + "}")
        return b"%b%b%b0\r\n\r\n" % (self._end, usage, _framed(b"data: [DONE]\n\n"))

    def whole(self, tokens: int) -> bytes:
        """A complete answer of a request that asked for no stream."""
        text = " ".join(["token"] * tokens)
        message = {"role": "assistant", "content": text}
        return _json(
            {
                "id": "chatcmpl-bench",
                "object": "chat.completion",
                "created": 1700000000,
                "model": self._model,
                "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
                "usage": {"prompt_tokens": 64, "completion_tokens": tokens, "total_tokens": 64 + tokens},
            }
        )


class Connection(asyncio.Protocol):
    """One client: one request at a time, answers in order."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._congested = False
        self._go_on: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES_MAX)

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        self._congested = True

    def resume_writing(self) -> None:
        self._congested = False
        go_on, self._go_on = self._go_on, None
        if go_on is not None:
            go_on()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(b"\r\n\r\n") + 4
        if head_end < 4:
            return
        head = self._buffer[:head_end]
        found = LENGTH.search(head)
        end = head_end + (int(found[1]) if found else 0)
        if len(self._buffer) < end:
            return
        body, self._buffer = self._buffer[head_end:end], self._buffer[end:]
        self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        if head.startswith(b"GET /v1/models"):
            self._transport.write(self._texts.models)
        elif not head.startswith(b"POST "):
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        else:
            fields: dict[str, Any] = _decode(body)
            tokens = fields.get("max_tokens") or TOKENS_DEFAULT
            pace_s = fields.get(PACE_FIELD, 0) / 1000
            if not fields.get("stream"):
                self._transport.write(self._texts.whole(tokens))
            elif pace_s:
                asked_s = now_s()
                due_s = self._loop.time() + pace_s
                self._timer = self._loop.call_at(due_s, self._paced, due_s, pace_s, 0, tokens, asked_s)
            else:
                self._flat(0, tokens, now_s())

    def _paced(self, due_s: float, pace_s: float, made: int, tokens: int, asked_s: float) -> None:
        if self._transport is None:
            return
        made += 1
        data = HEAD + self._texts.token(asked_s) if made == 1 else self._texts.token(None)
        if made == tokens:
            self._transport.write(data + self._texts.end(tokens))
            return
        self._transport.write(data)
        due_s += pace_s
        self._timer = self._loop.call_at(due_s, self._paced, due_s, pace_s, made, tokens, asked_s)

    def _flat(self, made: int, tokens: int, asked_s: float) -> None:
        if self._transport is None:
            return
        pieces = [] if made else [HEAD, self._texts.token(asked_s)]
        made = made or 1
        until = min(tokens, made + FLAT_TOKENS_A_TURN)
        pieces += [self._texts.token(None) for _ in range(until - made)]
        if until == tokens:
            pieces.append(self._texts.end(tokens))
        self._transport.write(b"".join(pieces))
        if until == tokens:
            return
        if self._congested:
            self._go_on = lambda: self._flat(until, tokens, asked_s)
        else:
            self._timer = self._loop.call_soon(self._flat, until, tokens, asked_s)


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(json_text: str) -> bytes:
    return _framed(f"data: {json_text}\n\n".encode())


def _cut(before: str, after: str, stamp_bytes: int) -> tuple[bytes, bytes]:
    """The two halves of a framed event around ``stamp_bytes`` bytes that are put in later."""
    size = len(before) + stamp_bytes + len(after)
    return b"%x\r\n%b" % (size, before.encode()), after.encode() + b"\r\n"


def _json(value: Any) -> bytes:
    body = msgspec.json.encode(value)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    return head + body


async def serve(port: int, model: str) -> None:
    """Serve until cancelled."""
    texts = Texts(model)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(texts), "127.0.0.1", port, backlog=2048)
    bound = server.sockets[0].getsockname()[1]
    sys.stdout.buffer.write(msgspec.json.encode({"port": bound}) + b"\n")
    sys.stdout.buffer.flush()
    async with server:
        await server.serve_forever()


def main() -> None:
    """The program."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="bench")
    options = parser.parse_args()
    uvloop.run(serve(options.port, options.model))


if __name__ == "__main__":
    main()
