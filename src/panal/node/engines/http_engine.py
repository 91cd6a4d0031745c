"""An engine reached over HTTP, whatever its dialect."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

import msgspec

from panal.core.errors import EngineFailed, EngineRefused, ProtocolError
from panal.core.requests import Route
from panal.node.engines.dialect import PATHS, Dialect
from panal.node.engines.engine import Delta, EngineCall, Json
from panal.node.engines.http_stream import EngineClient, EngineResponse
from panal.node.engines.sse import SseParser

EVENT_BYTES_MAX = 8 * 1024 * 1024
SMALL_ANSWER_BYTES_MAX = 16 * 1024 * 1024
EMBEDDINGS_BYTES_MAX = 64 * 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024
ASK_S_MAX = 30.0
PROBE_S_MAX = 1.2


@dataclass(frozen=True, slots=True)
class HttpEngine:
    """The talking half of an engine: stateless but for its connections.

    ``model`` is the name that the engine itself uses for its model; ``health_path`` answers 200.
    """

    client: EngineClient
    dialect: Dialect
    model: str
    context_tokens: int = 0
    health_path: str = "/health"

    async def generate(self, call: EngineCall) -> AsyncGenerator[Delta, None]:
        """See Engine.generate."""
        if call.emitted is None or not (call.emitted.text or call.emitted.token_ids):
            # Only the role was told before: for the engine that is a beginning like any other.
            call = replace(call, emitted=None) if call.emitted is not None else call
            request = self.dialect.first(call, self.model)
        else:
            request = await self.dialect.resumed(call, self.model, self.context_tokens, self.ask)
        if request.nothing_left:
            yield Delta(finish="length")
            return
        reader = self.dialect.reader(call, self.ask)
        async with await self.client.post(request.path, msgspec.json.encode(request.body)) as response:
            await refuse_unless_ok(response)
            parser = SseParser(EVENT_BYTES_MAX)
            while data := await response.read():
                for event in _parsed(parser, data):
                    if event == b"[DONE]":
                        response.ends_here()
                        return
                    yield reader.short(event) or await reader.read(_chunk(event))

    async def embed(self, call: EngineCall) -> Json:
        """See Engine.embed."""
        body = {**call.body, "model": self.model, "encoding_format": "float"}
        return await self._post(PATHS[Route.EMBEDDINGS], body, EMBEDDINGS_BYTES_MAX)

    async def ask(self, path: str, body: Json) -> Json:
        """A small question to the engine. Raises EngineRefused or EngineFailed."""
        try:
            async with asyncio.timeout(ASK_S_MAX):
                return await self._post(path, body, SMALL_ANSWER_BYTES_MAX)
        except TimeoutError as error:
            raise EngineFailed(f"the engine did not answer {path} within {ASK_S_MAX:g} s") from error

    async def _post(self, path: str, body: Json, bytes_max: int) -> Json:
        async with await self.client.post(path, msgspec.json.encode(body)) as response:
            await refuse_unless_ok(response)
            return decode_object(await response.whole(bytes_max))

    async def healthy(self) -> bool:
        """Whether the health path answers 200 within PROBE_S_MAX."""
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                async with await self.client.get(self.health_path) as response:
                    await response.whole(SMALL_ANSWER_BYTES_MAX)
                    return response.status == 200
        except (EngineFailed, TimeoutError):
            return False


async def refuse_unless_ok(response: EngineResponse) -> None:
    """Raises EngineRefused for a 4xx, with the engine's body; EngineFailed for anything else but 200."""
    if response.status == 200:
        return
    body = await response.whole(ERROR_BYTES_MAX)
    if 400 <= response.status < 500:
        raise EngineRefused(f"the engine answered {response.status}", status=response.status, body=body)
    raise EngineFailed(f"the engine answered {response.status}")


def decode_object(data: bytes) -> Json:
    """A JSON object. Raises EngineFailed."""
    try:
        return msgspec.json.decode(data, type=dict)
    except msgspec.DecodeError as error:
        raise EngineFailed(f"the engine's answer is not a JSON object: {error}") from error


def _parsed(parser: SseParser, data: bytes) -> list[bytes]:
    try:
        return parser.feed(data)
    except ProtocolError as error:
        raise EngineFailed(error.message) from error


def _chunk(event: bytes) -> Json:
    chunk = decode_object(event)
    if "error" in chunk:
        raise _stream_error(chunk, event)
    return chunk


def _stream_error(chunk: Json, event: bytes) -> EngineFailed | EngineRefused:
    error = chunk["error"]
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 500:
        return EngineRefused(f"the engine answered {code}", status=code, body=event[:ERROR_BYTES_MAX])
    return EngineFailed("the engine broke off with an error of its own")
