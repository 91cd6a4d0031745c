"""An engine that somebody else runs: attached to by its URL, never started or stopped by the agent."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from panal.core.errors import EngineFailed, EngineRefused, SettingsError
from panal.core.requests import Route
from panal.node.engines.dialect import Dialect
from panal.node.engines.engine import Delta, EngineCall, EngineFacts, Json, Resume
from panal.node.engines.http_engine import HttpEngine, decode_object, refuse_unless_ok
from panal.node.engines.http_stream import EngineAddress, EngineClient
from panal.node.engines.llama_cpp import LlamaCppDialect
from panal.node.engines.open_message import MessageDialect, at_least, vllm_message
from panal.node.engines.plain import PlainDialect
from panal.node.engines.token_ids import TokenIdsDialect

LOOK_S_MAX = 10.0
VLLM_MESSAGES = (0, 7, 0)
SGLANG_MESSAGES = (0, 4, 6)
"""The first versions that are trusted to continue an open message, later than those that brought it."""
LOOK_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class AttachedOptions:
    """``model``: the public name, empty for the engine's own. ``model_digest`` says which weights the
    program serves; without it nobody can know that two programs are twins, and nothing is resumed."""

    url: str
    model: str = ""
    model_digest: str = ""
    slots: int = 4
    api_key: str = field(default="", repr=False)


def address_of(url: str, api_key: str) -> EngineAddress:
    """``http[s]://host[:port][/prefix]``; a final ``/v1`` is dropped. Raises SettingsError for others."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or port == -1
        or parts.query
        or parts.username
    ):
        raise SettingsError(f"'{url}' is not the address of an engine: use http://host:port")
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    tls = parts.scheme == "https"
    return EngineAddress(parts.hostname, port or (443 if tls else 80), prefix, tls, api_key)


class AttachedEngine:
    """Its kind is found out at the start: /props is llama.cpp's, /version vLLM's, /get_server_info SGLang's,
    else it is plain."""

    def __init__(self, options: AttachedOptions) -> None:
        self._options = options
        self._address = address_of(options.url, options.api_key)
        self._http: HttpEngine | None = None
        self._facts = EngineFacts(kind="attached", model=options.model, slots=options.slots)
        self._stopped = asyncio.Event()

    @property
    def facts(self) -> EngineFacts:
        return self._facts

    async def start(self) -> None:
        """See Engine.start."""
        self._stopped.clear()
        client = EngineClient(self._address)
        try:
            async with asyncio.timeout(LOOK_S_MAX):
                self._http, self._facts = await self._look(client)
        except (TimeoutError, EngineRefused) as error:
            client.close()
            raise EngineFailed(
                f"the engine at {self._options.url} does not answer as one: {error}"
            ) from error
        except EngineFailed:
            client.close()
            raise

    async def _look(self, client: EngineClient) -> tuple[HttpEngine, EngineFacts]:
        own_name, context_tokens = await _first_model(client)
        kind, health_path, best, continues = "openai", "/v1/models", Resume.NONE, False
        found: Dialect = PlainDialect()
        props = await _maybe(client, "/props")
        if props is not None and "default_generation_settings" in props:
            kind, found, health_path = "llama.cpp", LlamaCppDialect(), "/health"
            settings = props.get("default_generation_settings") or {}
            context_tokens = settings.get("n_ctx") or context_tokens
            best = Resume.TOKEN_IDS
        elif (version := await _maybe(client, "/version")) is not None:
            continues = at_least(version.get("version"), VLLM_MESSAGES)
            found = TokenIdsDialect(vllm_message if continues else None)
            kind, health_path, best = "vllm", "/health", Resume.TOKEN_IDS
        elif (info := await _maybe(client, "/get_server_info")) is not None:
            kind, health_path = "sglang", "/health"
            continues = at_least(info.get("version"), SGLANG_MESSAGES)
            if continues:
                found, best = MessageDialect(), Resume.MESSAGE
        resume = best if self._options.model_digest else Resume.NONE
        facts = EngineFacts(
            kind=kind,
            model=self._options.model or own_name,
            twin=self._options.model_digest if resume is not Resume.NONE else "",
            resume=resume,
            routes=(Route.CHAT, Route.COMPLETIONS, Route.EMBEDDINGS),
            context_tokens=context_tokens,
            slots=self._options.slots,
            continues_messages=continues,
        )
        return HttpEngine(client, found, own_name, context_tokens, health_path), facts

    async def stop(self, grace_s: float = 0.0) -> None:
        """Forget the engine; it goes on without us."""
        del grace_s
        if self._http is not None:
            self._http.client.close()
            self._http = None
        self._stopped.set()

    def kill(self) -> None:
        """Not ours to kill."""

    async def ended(self) -> str:
        """Only when we stopped: a program that went away shows in ``healthy``, and may come back."""
        await self._stopped.wait()
        return "detached"

    async def healthy(self) -> bool:
        """See Engine.healthy."""
        return self._http is not None and await self._http.healthy()

    def generate(self, call: EngineCall) -> AsyncGenerator[Delta, None]:
        """See Engine.generate."""
        return self._talking().generate(call)

    async def embed(self, call: EngineCall) -> Json:
        """See Engine.embed."""
        return await self._talking().embed(call)

    def _talking(self) -> HttpEngine:
        if self._http is None:
            raise EngineFailed("the agent is not attached to its engine")
        return self._http

    def process_ids(self) -> frozenset[int]:
        """The processes are not ours."""
        return frozenset()


async def _get(client: EngineClient, path: str) -> Json:
    async with await client.get(path) as response:
        await refuse_unless_ok(response)
        return decode_object(await response.whole(LOOK_BYTES_MAX))


async def _maybe(client: EngineClient, path: str) -> Json | None:
    """The answer, or None where there is no such path. Raises EngineFailed when nobody answers at all."""
    async with await client.get(path) as response:
        body = await response.whole(LOOK_BYTES_MAX)
        if response.status != 200:
            return None
    try:
        return decode_object(body)
    except EngineFailed:
        return None


async def _first_model(client: EngineClient) -> tuple[str, int]:
    """The engine's own name of its first model, and its context if it says so."""
    rows = (await _get(client, "/v1/models")).get("data")
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], dict) or not rows[0].get("id"):
        raise EngineFailed("the engine lists no model")
    context = rows[0].get("max_model_len")
    return str(rows[0]["id"]), context if isinstance(context, int) else 0
