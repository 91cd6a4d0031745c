"""A node's GPUs over the stand-in for NVML, and an engine that loads as a test wants."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from panal.core.clock import Clock
from panal.core.errors import EngineFailed
from panal.core.settings import NodeSettings
from panal.node.engines.engine import Delta, EngineCall, EngineFacts, Json
from panal.node.gpus import NodeGpus
from panal.node.hardware.gpu_build import node_gpus
from panal.protocol.messages import TokenUsage


def gpus_of(folder: Path, hardware: Path, clock: Clock, settings: NodeSettings | None = None) -> NodeGpus:
    """What an agent in ``folder`` makes of the hardware file."""
    return node_gpus(folder, settings or NodeSettings(), clock, fake_hardware=hardware, uses_gpu=True)


@dataclass
class LoadedEngine:
    """``load`` runs at each start and may raise EngineFailed; ``pids`` are its processes then."""

    facts: EngineFacts = field(
        default_factory=lambda: EngineFacts(kind="test", model="m", twin="sha256-test", version="1")
    )
    load: Callable[[], None] = lambda: None
    pids: frozenset[int] = frozenset()
    gpu: str | None = None
    starts: int = 0
    calls: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def use_gpu(self, uuid: str, vendor: str) -> None:
        del vendor
        self.gpu = uuid

    async def start(self) -> None:
        self.starts += 1
        self.gone.clear()
        self.load()

    async def stop(self, grace_s: float) -> None:
        del grace_s
        self.gone.set()

    def kill(self) -> None:
        self.gone.set()

    async def ended(self) -> str:
        await self.gone.wait()
        return "exit code -9"

    async def healthy(self) -> bool:
        return not self.gone.is_set()

    async def generate(self, call: EngineCall) -> AsyncGenerator[Delta, None]:
        """A prompt of 100 tokens is read, then so many tokens are made as are asked for."""
        self.calls += 1
        await asyncio.sleep(0.01)
        usage = TokenUsage(prompt_tokens=100)
        for number in range(int(call.body["max_tokens"])):
            await asyncio.sleep(0.001)
            yield Delta(text="x", tokens=1, token_ids=[number], usage=usage)

    async def embed(self, call: EngineCall) -> Json:
        raise EngineFailed("no embeddings")

    def process_ids(self) -> frozenset[int]:
        return self.pids
