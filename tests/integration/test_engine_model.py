"""The real small model: resumed at every token, stop strings, letters of several tokens, a leaving client."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from panal.bus.memory_bus import MemoryBroker
from panal.core.clock import SystemClock
from panal.core.errors import SettingsError
from panal.core.ids import IdSource, NodeId
from panal.node.agent import Agent
from panal.node.availability import AlwaysAvailable
from panal.node.engines.build import EngineWish, build_engine
from panal.node.settings import AgentSettings
from panal.node.weights import cache_folder
from panal.protocol.messages import Emitted
from tests.support.agents import running_agent
from tests.support.node_gateway import KEY, SeenAttempt, TestGateway, chat, chunks_of, text_of

pytestmark = pytest.mark.model

TOKENS = 24
QUESTION = "Say hi and add a smiley emoji"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[TestGateway]:
    """A node with the exact engine, so that greedy answers are equal however they are cut."""
    wish = EngineWish(
        "embedded", tmp_path, cache_folder(os.environ), exact=True, slots=2, context_tokens=1024
    )
    try:
        engine = build_engine(wish)
    except SettingsError as error:
        pytest.skip(error.message)
    broker = MemoryBroker()
    found = TestGateway(broker)
    await found.start()
    clock = SystemClock()
    settings = AgentSettings(node=NodeId("node_test"), agent_version="test", measure=False)
    agent = Agent(settings, broker.node(KEY), engine, AlwaysAvailable(), clock, IdSource(clock, os.urandom))
    async with running_agent(agent):
        await found.ready()
        yield found
    await found.close()


def body_of(**more: Any) -> dict[str, Any]:
    return chat(QUESTION, temperature=0, max_tokens=TOKENS, **more)


def emitted_after(seen: SeenAttempt, events: int) -> Emitted:
    """What a gateway knows that lost its node after so many events."""
    part = SeenAttempt(seen.name)
    part.events = seen.events[:events]
    return part.emitted()


async def test_resumed_at_every_token_the_answer_is_the_same(gateway: TestGateway) -> None:
    whole = gateway.open(body_of())
    last = await whole.end()
    assert last.usage is not None and last.usage.completion_tokens == TOKENS
    ids = whole.token_ids
    assert ids is not None, "every id is known, also of letters that take several tokens"
    text = text_of(whole.data)
    assert text == whole.text and "\ufffd" not in text
    assert any(len(character.encode()) > 3 for character in text), "the model writes emoji here"
    for events in range(1, len(whole.events)):
        emitted = emitted_after(whole, events)
        rest = gateway.open(body_of(), emitted=emitted)
        end = await rest.end()
        assert emitted.text + text_of(rest.data) == text
        assert end.usage is not None
        assert end.usage.completion_tokens == TOKENS
        assert end.usage.prompt_tokens == last.usage.prompt_tokens
        roles = sum("role" in c["delta"] for chunk in chunks_of(rest.data)[:-1] for c in chunk["choices"])
        assert roles == (0 if emitted.role_sent else 1)


async def test_a_stream_shows_nothing_of_the_engines_own(gateway: TestGateway) -> None:
    seen = gateway.open(body_of())
    await seen.end()
    chunks = chunks_of(seen.data)[:-1]
    assert [c["delta"] for c in chunks[0]["choices"]] == [{"role": "assistant", "content": ""}]
    for chunk in chunks:
        assert not {"timings", "__verbose"} & set(chunk)
        assert chunk["model"] == "client-model" and chunk["id"] == "chatcmpl-test"
        assert not any(choice.get("logprobs") for choice in chunk["choices"])
    completions = gateway.open({"prompt": "One, two,", "max_tokens": 5}, route="completions")
    await completions.end()
    chunks = chunks_of(completions.data)[:-1]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 5
    assert all("usage" not in chunk for chunk in chunks[:-1])


async def test_a_stop_string_ends_the_real_models_answer(gateway: TestGateway) -> None:
    whole = gateway.open(body_of())
    await whole.end()
    text = text_of(whole.data)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    seen = gateway.open(body_of(stop=[stop]))
    last = await seen.end()
    assert last.finish == "stop"
    assert text_of(seen.data) == text[: text.index(stop)]


async def test_log_probabilities_come_only_to_those_who_asked(gateway: TestGateway) -> None:
    seen = gateway.open(body_of(logprobs=True, top_logprobs=2))
    await seen.end()
    entries = [
        entry
        for chunk in chunks_of(seen.data)[:-1]
        for choice in chunk["choices"]
        for entry in (choice.get("logprobs") or {}).get("content", ())
    ]
    assert entries and all(len(entry["top_logprobs"]) == 2 for entry in entries)


async def test_a_prompt_that_is_too_long_is_the_callers_mistake(gateway: TestGateway) -> None:
    last = await gateway.open(chat("a " * 3000)).end()
    assert last.error is not None
    assert (last.error.kind, last.error.status) == ("caller", 400)
    assert b"exceed_context_size_error" in last.error.body


async def test_a_cancelled_answer_frees_its_slot(gateway: TestGateway) -> None:
    seen = [gateway.open(chat("Tell a long story.", max_tokens=900)) for _ in range(2)]
    for each in seen:
        await each.until(lambda attempt: bool(attempt.text))
        gateway.cancel(each.name)
    short = gateway.open(chat("Hi", max_tokens=2))
    await short.end()
    assert short.last is not None and short.last.finish == "length"
