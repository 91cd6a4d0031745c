"""An engine that the agent runs itself: a child process on loopback with a random key."""

import secrets
from collections.abc import AsyncGenerator
from dataclasses import replace

from panal.core.errors import EngineFailed
from panal.node.engines.dialect import Dialect
from panal.node.engines.engine import Delta, EngineCall, EngineFacts, Json
from panal.node.engines.http_engine import HttpEngine
from panal.node.engines.http_stream import EngineAddress, EngineClient
from panal.node.engines.process import TERMINATE_S_MAX, EngineProcess, Program


class ProgramEngine:
    """One program, which may be started and stopped many times.

    ``expected`` are the facts before the start; context and slots come from the program's ready line.
    ``engine_model`` is the model's name in the program's own words.
    """

    def __init__(self, program: Program, dialect: Dialect, expected: EngineFacts, engine_model: str) -> None:
        self._program = program
        self._dialect = dialect
        self._facts = expected
        self._engine_model = engine_model
        self._process: EngineProcess | None = None
        self._http: HttpEngine | None = None

    @property
    def facts(self) -> EngineFacts:
        return self._facts

    def use_gpu(self, uuid: str, vendor: str) -> None:
        """See Placeable: the program sees this GPU only, by its UUID, or none."""
        name = "HIP_VISIBLE_DEVICES" if vendor == "amd" else "CUDA_VISIBLE_DEVICES"
        self._program = replace(self._program, environment={**self._program.environment, name: uuid})

    async def start(self) -> None:
        """See Engine.start."""
        if self._process is not None:
            await self.stop(0.0)
        key = secrets.token_urlsafe(32)
        self._process = EngineProcess(self._program, key)
        ready = await self._process.start()
        client = EngineClient(EngineAddress("127.0.0.1", ready.port, api_key=key))
        self._http = HttpEngine(client, self._dialect, self._engine_model, ready.context_tokens)
        self._facts = replace(self._facts, context_tokens=ready.context_tokens, slots=ready.slots)

    async def stop(self, grace_s: float = TERMINATE_S_MAX) -> None:
        """See Engine.stop."""
        if self._http is not None:
            self._http.client.close()
            self._http = None
        if self._process is not None:
            await self._process.stop(grace_s)
            self._process = None

    def kill(self) -> None:
        """See Engine.kill."""
        if self._process is not None:
            self._process.kill()

    async def ended(self) -> str:
        """See Engine.ended."""
        process = self._process
        if process is None:
            return "the engine is not running"
        await process.exited.wait()
        return process.why()

    async def healthy(self) -> bool:
        """See Engine.healthy."""
        if self._http is None or self._process is None or self._process.exited.is_set():
            return False
        return await self._http.healthy()

    def generate(self, call: EngineCall) -> AsyncGenerator[Delta, None]:
        """See Engine.generate."""
        return self._talking().generate(call)

    async def embed(self, call: EngineCall) -> Json:
        """See Engine.embed."""
        return await self._talking().embed(call)

    def _talking(self) -> HttpEngine:
        if self._http is None:
            raise EngineFailed("the engine is not running")
        return self._http

    def process_ids(self) -> frozenset[int]:
        """See Engine.process_ids."""
        process_id = self._process.process_id if self._process is not None else None
        return frozenset() if process_id is None else frozenset({process_id})
