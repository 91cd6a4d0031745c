"""From settings to an engine: the one place that knows all kinds."""

from dataclasses import dataclass, field
from pathlib import Path

from panal.core.errors import SettingsError
from panal.node.engines.attached import AttachedEngine, AttachedOptions
from panal.node.engines.echo import echo_engine
from panal.node.engines.embedded import EmbeddedOptions, embedded_engine
from panal.node.engines.engine import Engine
from panal.node.weights import SMOLLM2_135M, ModelCache, ModelSource

KINDS = ("embedded", "echo", "attached")


@dataclass(frozen=True, slots=True)
class EngineWish:
    """Which engine an agent shall use. ``home`` is where its logs go, ``cache`` the model cache.

    ``url``, ``model_digest`` and ``api_key`` are for an attached one; ``threads`` 0 is cores - 1;
    ``echo_options`` go to the echo engine's command line. ``start_s_max``: a start that makes no progress
    for so long has failed.
    """

    kind: str
    home: Path
    cache: Path
    model: str = ""
    source: ModelSource = SMOLLM2_135M
    threads: int = 0
    slots: int = 4
    context_tokens: int = 4096
    exact: bool = False
    nice: int = 0
    url: str = ""
    model_digest: str = ""
    api_key: str = field(default="", repr=False)
    echo_options: tuple[str, ...] = ()
    start_s_max: float = 120.0


def build_engine(wish: EngineWish) -> Engine:
    """The engine, not started. Raises SettingsError: unknown kind, model not in the cache, bad address."""
    if wish.url or wish.kind == "attached":
        return AttachedEngine(
            AttachedOptions(wish.url, wish.model, wish.model_digest, wish.slots, wish.api_key)
        )
    if wish.kind == "echo":
        return echo_engine(
            wish.home,
            model=wish.model or "echo",
            slots=wish.slots,
            options=wish.echo_options,
            start_s_max=wish.start_s_max,
        )
    if wish.kind != "embedded":
        raise SettingsError(f"Unknown engine '{wish.kind}': use one of {', '.join(KINDS)}.")
    return embedded_engine(
        wish.home,
        EmbeddedOptions(
            model=wish.model or wish.source.name,
            weights=ModelCache(wish.cache).require(wish.source),
            weights_sha256=wish.source.sha256,
            slots=wish.slots,
            context_tokens=wish.context_tokens,
            threads=wish.threads,
            exact=wish.exact,
            nice=wish.nice,
            start_s_max=wish.start_s_max,
        ),
    )
