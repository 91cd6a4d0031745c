"""Attached engines and the way in which they continue an answer: found out by what they say of themselves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from panal.core.requests import Route
from panal.node.engines.attached import AttachedEngine, AttachedOptions
from panal.node.engines.echo_engine import EchoEngine, EchoOptions, serve_echo
from panal.node.engines.echo_http import Exchange
from panal.node.engines.engine import EngineCall, Json, Resume
from panal.protocol.messages import Emitted

TEXT = "a🐝 cafe\u0301 שלום"
CHAT: Json = {"model": "m", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 40, "seed": 7}


class DialectEngine(EchoEngine):
    """The echo engine that calls itself another program: SGLang gives no ids and has no tokenize route."""

    def __init__(self, says: dict[str, Json], *, ids: bool) -> None:
        super().__init__(EchoOptions(model="m"))
        self._says = says
        self._ids = ids

    async def handle(self, exchange: Exchange) -> None:
        path = exchange.path.partition("?")[0]
        if exchange.method == "GET" and path in ("/version", "/get_server_info", "/props"):
            said = self._says.get(path)
            exchange.json(said or {"error": "no such path"}, 200 if said else 404)
        elif path == "/tokenize" and not self._ids:
            exchange.json({"error": "no such path"}, 404)
        else:
            await super().handle(exchange)

    async def _generate(self, exchange: Exchange, body: Json, *, chat: bool) -> None:
        if not self._ids:
            assert "return_token_ids" not in body, "SGLang is not asked for what it does not know"
        await super()._generate(exchange, body, chat=chat)


@asynccontextmanager
async def attached(
    says: dict[str, Json], *, ids: bool = False, digest: str = "sha256:1"
) -> AsyncIterator[tuple[AttachedEngine, DialectEngine]]:
    program = DialectEngine(says, ids=ids)
    server, tasks = await serve_echo(program, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    engine = AttachedEngine(AttachedOptions(f"http://127.0.0.1:{port}", model_digest=digest))
    await engine.start()
    try:
        yield engine, program
    finally:
        await engine.stop()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def text_of(engine: AttachedEngine, call: EngineCall) -> str:
    return "".join([delta.text async for delta in engine.generate(call)])


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
async def test_sglang_goes_on_after_every_character(route: Route) -> None:
    body: Json = CHAT if route is Route.CHAT else {"model": "m", "prompt": TEXT}
    async with attached({"/get_server_info": {"version": "0.5.2"}}) as (engine, program):
        assert (engine.facts.kind, engine.facts.resume) == ("sglang", Resume.MESSAGE)
        assert engine.facts.continues_messages
        whole = await text_of(engine, EngineCall(route, body))
        assert whole.strip("\n") == TEXT
        for said in range(1, len(whole)):
            emitted = Emitted(text=whole[:said], completion_tokens=said)
            rest = await text_of(engine, EngineCall(route, body, emitted))
            assert whole[:said] + rest == whole
        sent = program.stats.last_body
    if route is Route.CHAT:
        assert sent["messages"] == [*CHAT["messages"], {"role": "assistant", "content": whole[:-1]}]
        assert sent["continue_final_message"] is True
        assert sent["max_tokens"] == 40 - (len(whole) - 1)
        assert sent["seed"] != 7


async def test_tokens_are_counted_by_the_usage_of_every_chunk() -> None:
    async with attached({"/get_server_info": {"version": "0.5.2"}}) as (engine, _program):
        tokens = [delta.tokens async for delta in engine.generate(EngineCall(Route.CHAT, CHAT))]
    assert sum(tokens) == len(TEXT.encode())


@pytest.mark.parametrize(
    ("says", "ids", "digest", "kind", "resume", "messages"),
    [
        ({"/get_server_info": {"version": "0.4.0"}}, False, "d", "sglang", Resume.NONE, False),
        ({"/get_server_info": {"version": "odd"}}, False, "d", "sglang", Resume.NONE, False),
        ({"/get_server_info": {"version": "0.5.2"}}, False, "", "sglang", Resume.NONE, True),
        ({"/version": {"version": "0.10.1.1"}}, True, "d", "vllm", Resume.TOKEN_IDS, True),
        ({"/version": {"version": "0.6.3"}}, True, "d", "vllm", Resume.TOKEN_IDS, False),
        ({}, False, "d", "openai", Resume.NONE, False),
    ],
)
async def test_only_what_is_known_to_continue_is_asked_to(
    says: dict[str, Any], ids: bool, digest: str, kind: str, resume: Resume, messages: bool
) -> None:
    async with attached(says, ids=ids, digest=digest) as (engine, _program):
        facts = engine.facts
    assert (facts.kind, facts.resume, facts.continues_messages) == (kind, resume, messages)
    assert bool(facts.twin) == (resume is not Resume.NONE)
