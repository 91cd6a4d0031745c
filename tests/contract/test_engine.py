"""What every engine must do, on the echo engine (vLLM's dialect), the embedded one with the real model, and
any OpenAI-compatible program."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from panal.core.errors import EngineFailed, EngineRefused, SettingsError
from panal.core.requests import Route
from panal.node.engines.attached import AttachedEngine, AttachedOptions
from panal.node.engines.build import EngineWish, build_engine
from panal.node.engines.echo_engine import EchoEngine, EchoOptions, serve_echo
from panal.node.engines.engine import Delta, Engine, EngineCall, Json, Resume
from panal.node.weights import cache_folder
from panal.protocol.messages import Emitted

KINDS = [
    "echo",
    "plain",
    pytest.param("embedded", marks=pytest.mark.model),
    pytest.param("embedded-exact", marks=pytest.mark.model),
    pytest.param("attached", marks=pytest.mark.model),
]


class PlainEcho(EchoEngine):
    """The echo engine with nothing by which one could know its kind, and without ids."""

    async def handle(self, exchange: object) -> None:
        path = exchange.path.partition("?")[0]  # type: ignore[attr-defined]
        if path in ("/version", "/props", "/tokenize"):
            exchange.json({"error": {"message": "no such path", "code": 404}}, 404)  # type: ignore[attr-defined]
            return
        await super().handle(exchange)  # type: ignore[arg-type]


@pytest.fixture(params=KINDS)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    if request.param == "plain":
        async with plain_engine() as found:
            yield found
        return
    kind = "embedded" if request.param == "attached" else request.param.removesuffix("-exact")
    wish = EngineWish(
        kind, tmp_path, cache_folder(os.environ), context_tokens=1024, exact="exact" in request.param, slots=2
    )
    try:
        found = build_engine(wish)
    except SettingsError as error:
        pytest.skip(error.message)
    await found.start()
    if request.param == "attached":
        address = found._http.client.address  # type: ignore[attr-defined]
        options = AttachedOptions(
            f"http://127.0.0.1:{address.port}", model_digest="d", slots=2, api_key=address.api_key
        )
        attached = AttachedEngine(options)
        await attached.start()
        assert (attached.facts.kind, attached.facts.context_tokens) == ("llama.cpp", 1024)
        yield attached
        await attached.stop()
    else:
        yield found
    await found.stop(2.0)


class plain_engine:  # noqa: N801 - used like a function
    async def __aenter__(self) -> Engine:
        self._server, self._tasks = await serve_echo(PlainEcho(EchoOptions(slots=2)), "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self._engine = AttachedEngine(AttachedOptions(f"http://127.0.0.1:{port}/v1/"))
        await self._engine.start()
        return self._engine

    async def __aexit__(self, *_: object) -> None:
        await self._engine.stop()
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def chat_body(text: str, **more: object) -> Json:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


async def all_deltas(engine: Engine, call: EngineCall) -> list[Delta]:
    async with asyncio.timeout(60):
        return [delta async for delta in engine.generate(call)]


def joined_ids(deltas: list[Delta]) -> list[int] | None:
    ids: list[int] = []
    for delta in deltas:
        if delta.text and delta.token_ids is None:
            return None
        ids += delta.token_ids or []
    return ids


async def test_answers_its_health_probe(engine: Engine) -> None:
    assert await engine.healthy()


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
async def test_streams_text_with_a_finish_and_usage(engine: Engine, route: Route) -> None:
    body = (
        chat_body("count 9", max_tokens=12)
        if route is Route.CHAT
        else {"prompt": "count 9", "max_tokens": 12, "temperature": 0}
    )
    deltas = await all_deltas(engine, EngineCall(route, body))
    assert "".join(delta.text for delta in deltas)
    assert [delta.finish for delta in deltas if delta.finish] == ["length"]
    usage = [delta.usage for delta in deltas if delta.usage is not None][-1]
    assert usage.completion_tokens == 12
    assert usage.prompt_tokens > 0
    assert sum(delta.tokens for delta in deltas) == 12
    if engine.facts.resume is Resume.TOKEN_IDS:
        ids = joined_ids(deltas)
        assert ids is not None and len(ids) == 12


async def test_passes_on_nothing_that_only_panal_asked_for(engine: Engine) -> None:
    deltas = await all_deltas(engine, EngineCall(Route.CHAT, chat_body("count 9", max_tokens=8)))
    deltas += await all_deltas(engine, EngineCall(Route.COMPLETIONS, {"prompt": "count 9", "max_tokens": 8}))
    for delta in deltas:
        if delta.chunk is not None:
            assert not {"timings", "__verbose", "usage", "prompt_token_ids"} & set(delta.chunk)
            for choice in delta.chunk["choices"]:
                assert not choice.get("logprobs")
                assert not {"token_ids", "prompt_token_ids"} & set(choice)


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
async def test_continues_an_answer_that_began_elsewhere(engine: Engine, route: Route) -> None:
    question = "count 30"
    body = (
        chat_body(question, max_tokens=24) if route is Route.CHAT else {"prompt": question, "max_tokens": 24}
    )
    body["temperature"] = 0
    whole = await all_deltas(engine, EngineCall(route, body))
    text = "".join(delta.text for delta in whole)
    ids = joined_ids(whole)
    if engine.facts.resume is Resume.NONE:
        with pytest.raises(EngineFailed):
            await all_deltas(engine, EngineCall(route, body, Emitted(text="1 2 3", completion_tokens=5)))
        return
    assert ids is not None
    usage = [delta.usage for delta in whole if delta.usage is not None][-1]
    cut = _whole_cut(whole, 9)
    emitted = Emitted(
        text="".join(delta.text for delta in whole[:cut]),
        token_ids=joined_ids(whole[:cut]),
        completion_tokens=sum(delta.tokens for delta in whole[:cut]),
        prompt_tokens=usage.prompt_tokens,
        role_sent=True,
    )
    rest = await all_deltas(engine, EngineCall(route, body, emitted))
    continued = "".join(delta.text for delta in rest)
    assert sum(delta.tokens for delta in rest) <= 24 - emitted.completion_tokens
    assert all("delta" in c for d in rest if d.chunk for c in d.chunk["choices"]) == (route is Route.CHAT)
    prompt = [delta.usage for delta in rest if delta.usage is not None][-1].prompt_tokens
    assert prompt == usage.prompt_tokens + emitted.completion_tokens
    if engine.facts.kind == "echo" or Route.EMBEDDINGS not in engine.facts.routes:
        assert emitted.text + continued == text
    by_text = Emitted(text=emitted.text, completion_tokens=emitted.completion_tokens, role_sent=True)
    again = await all_deltas(engine, EngineCall(route, body, by_text))
    assert "".join(delta.text for delta in again)


def _whole_cut(deltas: list[Delta], wanted: int) -> int:
    """After so many deltas, at a place where the text is whole."""
    return next(index for index, delta in enumerate(deltas) if index >= wanted and delta.text) + 1


async def test_a_beginning_after_the_role_was_told_is_a_beginning(engine: Engine) -> None:
    body = chat_body("count 5", max_tokens=12)
    fresh = await all_deltas(engine, EngineCall(Route.CHAT, body))
    again = await all_deltas(engine, EngineCall(Route.CHAT, body, Emitted(role_sent=True)))
    assert [delta.text for delta in again] == [delta.text for delta in fresh]
    assert [delta.finish for delta in again] == [delta.finish for delta in fresh]


async def test_nothing_is_asked_of_the_engine_when_the_limit_is_used_up(engine: Engine) -> None:
    if engine.facts.resume is Resume.NONE:
        pytest.skip("this engine cannot resume")
    emitted = Emitted(text="1 2 3", token_ids=[49, 32, 50, 32, 51], completion_tokens=5)
    rest = await all_deltas(engine, EngineCall(Route.CHAT, chat_body("count 9", max_tokens=5), emitted))
    assert [(delta.text, delta.finish) for delta in rest] == [("", "length")]


async def test_refuses_with_the_engines_own_words(engine: Engine) -> None:
    with pytest.raises(EngineRefused) as refused:
        await all_deltas(engine, EngineCall(Route.CHAT, {"messages": "nothing"}))
    assert refused.value.status == 400
    assert b"error" in refused.value.body


async def test_a_closed_generator_frees_the_slot_at_once(engine: Engine) -> None:
    body = chat_body("count 100000", max_tokens=900)
    for _ in range(engine.facts.slots + 1):
        async with asyncio.timeout(20), aclosing(engine.generate(EngineCall(Route.CHAT, body))) as deltas:
            async for delta in deltas:
                if delta.text:
                    break
    short = await all_deltas(engine, EngineCall(Route.CHAT, chat_body("count 3", max_tokens=3)))
    assert short[-1].finish or short[-2].finish


async def test_embeddings_are_floats(engine: Engine) -> None:
    if Route.EMBEDDINGS not in engine.facts.routes:
        pytest.skip("exact mode has no embeddings")
    answer = await engine.embed(EngineCall(Route.EMBEDDINGS, {"input": ["one", "two"]}))
    assert [row["index"] for row in answer["data"]] == [0, 1]
    assert all(isinstance(value, float) for row in answer["data"] for value in row["embedding"])


async def test_stopping_leaves_no_process(tmp_path: Path) -> None:
    found = build_engine(EngineWish("echo", tmp_path, tmp_path))
    await found.start()
    [process_id] = found.process_ids()
    await found.stop(2.0)
    assert found.process_ids() == frozenset()
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)
    assert not await found.healthy()
