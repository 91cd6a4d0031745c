"""Any OpenAI-compatible program: its own routes, no ids, no resume."""

from collections.abc import Callable

from panal.core.errors import EngineFailed
from panal.node.engines.dialect import PATHS, Ask, ChunkReader, EngineRequest, plain_delta, streamed
from panal.node.engines.engine import Delta, EngineCall, Json
from panal.node.engines.text_chunks import TextChunks


class PlainReader:
    """Chunks as they are."""

    def __init__(self, call: EngineCall) -> None:
        self._route = call.route
        self.short: Callable[[bytes], Delta | None] = TextChunks(call.route).read

    async def read(self, chunk: Json) -> Delta:
        return plain_delta(chunk, self._route)


class PlainDialect:
    """The smallest common speech."""

    def first(self, call: EngineCall, model: str) -> EngineRequest:
        return EngineRequest(PATHS[call.route], streamed(call.body, model))

    async def resumed(self, call: EngineCall, model: str, context_tokens: int, ask: Ask) -> EngineRequest:
        del call, model, context_tokens, ask
        raise EngineFailed("this engine cannot continue an answer that began elsewhere")

    def reader(self, call: EngineCall, ask: Ask) -> ChunkReader:
        del ask
        return PlainReader(call)
