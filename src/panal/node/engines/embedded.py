"""The embedded llama.cpp engine as a program of the agent."""

import os
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from panal.core.requests import Route
from panal.node.engines.engine import EngineFacts, Resume
from panal.node.engines.llama_cpp import LlamaCppDialect
from panal.node.engines.process import Program
from panal.node.engines.program_engine import ProgramEngine


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """``threads`` 0: one less than there are cores, since a busy core stops all of llama.cpp's threads."""

    model: str
    weights: Path
    weights_sha256: str
    slots: int = 4
    context_tokens: int = 4096
    threads: int = 0
    exact: bool = False
    nice: int = 0
    start_s_max: float = 120.0


def embedded_version() -> str:
    """Of the engine's library; empty when it is not installed."""
    try:
        return metadata.version("xllamacpp")
    except metadata.PackageNotFoundError:
        return ""


def embedded_uses_gpu() -> bool:
    """Whether the library was built for GPUs: those builds say so behind a plus, such as ``+cu124``."""
    build = embedded_version().partition("+")[2]
    return build.startswith(("cu", "rocm", "hip", "vulkan"))


def embedded_engine(home: Path, options: EmbeddedOptions) -> ProgramEngine:
    """The engine, not started."""
    threads = options.threads or max(1, (os.cpu_count() or 2) - 1)
    command = [
        sys.executable, "-m", "panal.node.engines.embedded_engine", "--home", str(home),
        "--model", str(options.weights), "--name", options.model, "--threads", str(threads),
        "--slots", str(options.slots), "--context-tokens", str(options.context_tokens),
        "--nice", str(options.nice),
    ]  # fmt: skip
    routes = [Route.CHAT, Route.COMPLETIONS]
    if options.exact:
        command.append("--exact")
    else:
        routes.append(Route.EMBEDDINGS)
    facts = EngineFacts(
        kind="llama.cpp",
        model=options.model,
        twin=f"sha256-{options.weights_sha256[:40]}",
        resume=Resume.TOKEN_IDS,
        routes=tuple(routes),
        context_tokens=options.context_tokens,
        slots=options.slots,
        version=embedded_version(),
        weights_bytes=options.weights.stat().st_size if options.weights.exists() else 0,
    )
    program = Program(tuple(command), home / "engine.log", ready_s_max=options.start_s_max)
    return ProgramEngine(program, LlamaCppDialect(), facts, options.model)
