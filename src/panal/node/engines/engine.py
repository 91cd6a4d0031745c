"""The seam to the programs that run models: what an engine is, is asked for, and gives back."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from panal.core.errors import EngineFailed
from panal.core.requests import Route
from panal.protocol.messages import Emitted, TokenUsage

Json = dict[str, Any]


class LoadPostponed(EngineFailed):
    """The engine cannot be loaded now for a reason outside of it; ``message`` names it, cards and all.

    ``coarse`` is the reason in words that may travel.
    """

    def __init__(self, message: str, coarse: str) -> None:
        super().__init__(message)
        self.coarse = coarse


class Resume(StrEnum):
    """How an answer that began elsewhere can be continued on this engine. The value travels."""

    TOKEN_IDS = "token_ids"  # noqa: S105 - a word, no secret
    MESSAGE = "message"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is true of an engine from its start to its stop.

    ``twin`` is equal for engines that may continue each other's answers: a digest of weights,
    template and tokenizer; empty where that is not known, and then ``resume`` is NONE.
    ``context_tokens`` is the room of one request, 0 where unknown. ``slots`` is how many requests
    run at the same time.
    """

    kind: str
    model: str
    twin: str = ""
    resume: Resume = Resume.NONE
    routes: tuple[Route, ...] = (Route.CHAT, Route.COMPLETIONS)
    context_tokens: int = 0
    slots: int = 1
    continues_messages: bool = False
    """Whether the chat route continues an open assistant message; see node/engines/open_message.py."""
    version: str = ""
    weights_bytes: int = 0
    """Size of the model's file, 0 where it is not known."""


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One request. ``body`` is the client's, decoded; engines make their own copy of what they change.

    ``emitted`` is what earlier attempts gave the client: the engine goes on after it.
    """

    route: Route
    body: Json
    emitted: Emitted | None = None
    cache_salt: str = ""


class Delta(msgspec.Struct):
    """One step of an answer.

    ``chunk`` is the engine's chunk in the shape of the call's route, free of what only panal asked for
    and of usage; None where there is nothing to pass on, or nothing but text (``plain``). ``text`` is the
    new text of the first choice. ``token_ids`` are ids made since the last delta, perhaps ahead of their
    text; None where an id is unknown. ``tokens`` is how many tokens were made in all choices. ``usage`` is
    the engine's own count so far, of this call alone; ``raw_usage`` is the same as the engine wrote it.
    """

    chunk: Json | None = None
    text: str = ""
    token_ids: list[int] | None = None
    tokens: int = 0
    finish: str | None = None
    usage: TokenUsage | None = None
    raw_usage: Json | None = None
    opaque: bool = False
    plain: bool = False


class Engine(Protocol):
    """A program that runs one model."""

    @property
    def facts(self) -> EngineFacts:
        """Valid after ``start``."""
        ...

    async def start(self) -> None:
        """Return when requests can be served. Raises EngineFailed or SettingsError."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Give everything back, memory too; past ``grace_s`` the program is killed. Never raises."""
        ...

    def kill(self) -> None:
        """End its processes this instant, without asking; ``stop`` is still to be called, or running."""
        ...

    async def ended(self) -> str:
        """Return, with the reason for a person, when a started engine ended by itself."""
        ...

    async def healthy(self) -> bool:
        """Whether it answers; False at once where that is known, else within about a second."""
        ...

    def generate(self, call: EngineCall) -> AsyncGenerator[Delta, None]:
        """The answer, step by step. Closing the generator frees the engine's slot at once.

        Raises EngineRefused with the engine's own 4xx, EngineFailed for everything else. A stream that
        simply ends is no error here: without a finish the answer is not complete.
        """
        ...

    async def embed(self, call: EngineCall) -> Json:
        """The decoded answer of the embeddings route, vectors as floats. Raises as ``generate`` does."""
        ...

    def process_ids(self) -> frozenset[int]:
        """The processes that hold this engine's memory; empty when it is not ours or not running."""
        ...
