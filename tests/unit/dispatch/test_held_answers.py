"""On a machine with an owner nothing is sent of an answer that nobody could continue, until it is whole."""

from dataclasses import replace
from typing import Any

import pytest

from panal.core.nodes import NodeClass
from panal.core.requests import Route
from panal.dispatch.limits import Limits
from panal.node.engines.engine import Resume
from panal.node.engines.plain import PlainDialect
from tests.support.cut_path import CutPath, EchoNode, Seen

TEXT = "a🐝 cafe\u0301 שלום"
TOOL = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
ENGINES = {
    "no way to continue": ({"dialect": PlainDialect(), "resume": Resume.NONE}, {}),
    "tools that only the chat route reads": ({}, {"tools": TOOL}),
}


def question(**more: Any) -> tuple[Route, dict[str, Any]]:
    messages = [{"role": "user", "content": TEXT}]
    return Route.CHAT, {"model": "m", "messages": messages, "stream": True, **more}


async def asked(
    engine: dict[str, Any],
    node_class: NodeClass = NodeClass.DESKTOP,
    hold_bytes_max: int = 1_000_000,
    **more: Any,
) -> tuple[Seen, CutPath]:
    path = CutPath(limits=Limits(recovery_s_max=1.0, hold_bytes_max=hold_bytes_max))
    await path.start(3, **engine)
    for node in path.nodes:
        assert isinstance(node, EchoNode)
        node.engine.facts = replace(node.engine.facts, continues_messages=False)
    path.beat_all()
    await path.settled()
    path.fleet.set_facts([path.facts(node, node_class=node_class) for node in path.nodes])
    return await path.ask(*question(**more)), path


@pytest.mark.parametrize("kind", ENGINES)
async def test_a_crash_at_any_token_is_a_restart_that_nobody_sees(kind: str) -> None:
    engine, more = ENGINES[kind]
    whole, path = await asked(engine, **more)
    assert whole.done == 1 and path.runs[0][1].hold
    for token in range(len(TEXT.encode())):
        seen, path = await asked(engine, x_echo={"close_after": token}, **more)
        assert seen.view() == whole.view(), token
        (finished,) = path.books.finished
        assert len(finished.attempts) == 2 and finished.resumes == 0
        assert finished.attempts[0].made().delivered_tokens == 0


@pytest.mark.parametrize("kind", ENGINES)
async def test_a_machine_of_nobodys_own_streams_them(kind: str) -> None:
    engine, more = ENGINES[kind]
    seen, path = await asked(engine, NodeClass.DEDICATED, **more)
    assert seen.done == 1 and not path.runs[0][1].hold
    assert path.frames_seen[1] > len(TEXT)


async def test_what_can_go_on_streams_on_a_desk_too() -> None:
    seen, path = await asked({})
    assert seen.done == 1 and not path.runs[0][1].hold
    assert path.frames_seen[1] > len(TEXT)


async def test_a_long_answer_is_sent_beyond_the_limit_and_its_cut_is_told() -> None:
    engine, _more = ENGINES["no way to continue"]
    whole, _ = await asked(engine, hold_bytes_max=1500)
    tokens = len(TEXT.encode())
    errors = []
    for token in range(tokens):
        seen, _ = await asked(engine, hold_bytes_max=1500, x_echo={"close_after": token})
        errors.append(seen.error)
        if seen.error:
            assert seen.text and whole.text.startswith(seen.text) and not seen.finishes
        else:
            assert seen.view() == whole.view(), token
    held = errors.index("answer_cut")
    assert 0 < held < tokens - 1
    assert set(errors[held:]) == {"answer_cut"}
