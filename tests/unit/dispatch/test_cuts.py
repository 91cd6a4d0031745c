"""An answer cut anywhere is for its client the answer that was never cut.

Real dispatcher, real agent parts, echo engine with one token per byte: every frame ends at a token, and
most tokens end inside a character.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from panal.core.nodes import NodeClass
from panal.core.requests import Route
from panal.node.engines.engine import Resume
from panal.node.engines.open_message import MessageDialect
from panal.node.engines.plain import PlainDialect
from tests.support.cut_path import Cut, CutPath, EchoNode, Seen
from tests.support.path import ListSink

TEXTS = {
    "plain": "Bees fly.",
    "emoji": "a🐝👩‍👩‍👧‍👦🇪🇸👍🏽z",
    "combining": "cafe\u0301 n\u0303 q\u0323\u0307 \u1100\u1161\u11a8",
    "right-to-left": "שלום עולם, عربى ۱۲ \u202bab\u202c",
    "astral and quotes": '𝔞𝄞 "\\n" \u2028 </s>\t漢字',
}
KINDS = ("gap", "silence", "crash", "leaving")


def chat(text: str, **more: Any) -> tuple[Route, dict[str, Any]]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return Route.CHAT, {"model": "m", "messages": [{"role": "user", "content": text}], **options, **more}


def completion(text: str, **more: Any) -> tuple[Route, dict[str, Any]]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return Route.COMPLETIONS, {"model": "m", "prompt": text, **options, **more}


async def asked(
    question: tuple[Route, dict[str, Any]], *cuts: Cut, nodes: int = 3, owned: bool = False, **engine: Any
) -> tuple[Seen, CutPath]:
    path = CutPath()
    await path.start(nodes, **engine)
    if owned:
        desks = [path.facts(node, node_class=NodeClass.DESKTOP) for node in path.nodes]
        path.fleet.set_facts(desks)
    return await path.ask(*question, *cuts), path


async def cut_at_every_frame(question: tuple[Route, dict[str, Any]], kind: str) -> int:
    """Cut once at each frame and compare; gives the number of frames."""
    whole, path = await asked(question)
    assert whole.done == 1 and not whole.error
    frames = path.frames_seen[1]
    for at in range(frames):
        seen, path = await asked(question, Cut(kind, at))
        assert seen.view() == whole.view(), (kind, at)
        check_books(path, seen)
    return frames


def check_books(path: CutPath, seen: Seen) -> None:
    """One record, whose tokens are those shown; useful tokens of all attempts add up to them."""
    (finished,) = path.books.finished
    if seen.usages:
        assert finished.shown.completion_tokens == seen.usages[0]["completion_tokens"]
        assert finished.shown.prompt_tokens == seen.usages[0]["prompt_tokens"]
    assert all(own.running == 0 for _replica, own in path.fleet.candidates("m"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ask", [chat, completion], ids=["chat", "completions"])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_a_stream_cut_at_any_frame_is_the_uncut_stream(kind: str, ask: Any, text: str) -> None:
    frames = await cut_at_every_frame(ask(text), kind)
    assert frames > len(text)


@pytest.mark.parametrize("grace_s", [0.0, 5.0])
async def test_a_hand_over_at_any_frame_is_the_uncut_stream(grace_s: float) -> None:
    """With a grace the leaving node speaks on while the next one reads."""
    question = chat("a🐝 cafe\u0301 שלום " * 2)
    whole, path = await asked(question)
    handed_over = 0
    for at in range(path.frames_seen[1]):
        seen, path = await asked(question, Cut("leaving", at, grace_s))
        assert seen.view() == whole.view(), at
        check_books(path, seen)
        handed_over += path.books.finished[0].resumes
    assert handed_over > 10


@pytest.mark.parametrize("fault", ["close_after", "stop_after", "abort_after"])
@pytest.mark.parametrize("ask", [chat, completion], ids=["chat", "completions"])
async def test_an_engine_that_fails_at_any_token_leaves_no_trace(fault: str, ask: Any) -> None:
    """The engine hangs up, ends without a finish, or finishes with its own abort."""
    text = "a🐝 cafe\u0301 שלום"
    whole, _ = await asked(ask(text))
    for token in range(len(text.encode())):
        seen, path = await asked(ask(text, x_echo={fault: token}))
        assert seen.view() == whole.view(), token
        check_books(path, seen)
        assert len(path.books.finished[0].attempts) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_cut_at_any_two_frames_is_the_uncut_stream(kind: str) -> None:
    question = chat("a🐝e\u0301ש!")
    whole, path = await asked(question)
    for first in range(path.frames_seen[1]):
        for second in range(0, path.frames_seen[1] - first, 2):
            cuts = Cut(kind, first), Cut(kind, second)
            seen, path_cut = await asked(question, *cuts, nodes=4)
            assert seen.view() == whole.view(), cuts
            check_books(path_cut, seen)


STOPS = [
    ("abcSTOPdef", ["STOP"]),
    ("🐝🐝🐝x🐝🐝", ["🐝x"]),
    ("aaaaab", ["aab", "zz"]),
    ("שלום עולם", ["ם ע"]),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("text", "stops"), STOPS)
async def test_stop_strings_are_found_across_every_joint(kind: str, text: str, stops: list[str]) -> None:
    for ask in (chat, completion):
        question = ask(text, stop=stops)
        whole, path = await asked(question)
        assert whole.text.strip("\n") == text[: min(text.find(stop) for stop in stops if stop in text)]
        for at in range(path.frames_seen[1]):
            seen, _ = await asked(question, Cut(kind, at))
            assert seen.view() == whole.view(), at


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [1, 3, 7])
async def test_a_limit_of_tokens_holds_for_the_whole_answer(kind: str, limit: int) -> None:
    """A limit that falls inside a character too."""
    question = chat("a🐝bcde", max_tokens=limit, min_tokens=1)
    whole, path = await asked(question)
    assert whole.finishes == ["length"]
    for at in range(path.frames_seen[1]):
        seen, _ = await asked(question, Cut(kind, at))
        assert seen.view() == whole.view(), at


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ask", [chat, completion], ids=["chat", "completions"])
async def test_an_answer_in_one_piece_resumes_in_the_same_way(kind: str, ask: Any) -> None:
    route, body = ask("a🐝 cafe\u0301 שלום" * 6)
    body = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    whole, path = await asked((route, body))
    frames = path.frames_seen[1]
    assert frames >= 8
    for at in range(frames):
        seen, path = await asked((route, body), Cut(kind, at))
        assert seen.view() == whole.view(), at
        check_books(path, seen)


TOOL: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tool_call_that_is_sent_whole_is_restarted_unseen(kind: str) -> None:
    question = chat("use a tool", tools=TOOL, tool_buffering="whole")
    whole, path = await asked(question)
    assert whole.calls[0]["arguments"] == '{"city": "Zürich 🏔", "days": [1, 2]}'
    assert whole.finishes == ["tool_calls"]
    for at in range(path.frames_seen[1]):
        seen, path = await asked(question, Cut(kind, at))
        assert seen.view() == whole.view(), at
        check_books(path, seen)


async def test_a_node_hears_from_the_gateway_that_calls_shall_come_whole() -> None:
    """The key or the model says it, and not the body."""
    path = await CutPath().start(3)
    route, body = chat("use a tool", tools=TOOL)
    request = replace(path.request(route, body), tools_whole=True)
    sink = ListSink()
    tail = await path.dispatcher.answer(request, sink)
    assert b"tool_calls" in tail and b"tool_calls" not in sink.data
    for node in path.nodes:
        assert isinstance(node, EchoNode)
        await node.attempts.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cut_inside_a_streamed_tool_call_is_told_and_never_hidden(kind: str) -> None:
    """The call as far as it was sent is a true beginning, and no finish follows it."""
    question = chat("use a tool", tools=TOOL)
    whole, path = await asked(question)
    told = 0
    for at in range(path.frames_seen[1]):
        seen, path = await asked(question, Cut(kind, at))
        if not seen.error:
            assert seen.view() == whole.view(), at
            continue
        told += 1
        assert seen.error == "answer_cut"
        assert not seen.finishes and not seen.done
        for index, call in seen.calls.items():
            assert whole.calls[index]["arguments"].startswith(call["arguments"])
    assert told > 10


@pytest.mark.parametrize("kind", KINDS)
async def test_text_of_an_answer_that_may_call_tools_goes_on_in_an_open_message(kind: str) -> None:
    """Only the chat route reads tool calls, so the rest is asked for there and not raw."""
    question = chat("say a🐝 cafe\u0301 שלום", tools=TOOL)
    whole, path = await asked(question)
    resumed = 0
    for at in range(path.frames_seen[1]):
        seen, path = await asked(question, Cut(kind, at))
        assert seen.view() == whole.view(), at
        last = path.runs[-1][0].engine.echo.stats.last_body
        if path.books.finished[0].resumes:
            resumed += 1
            assert last["continue_final_message"] and not last["add_generation_prompt"]
            assert last["messages"][-1]["role"] == "assistant"
            assert last["tools"] == TOOL
    assert resumed > 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ask", [chat, completion], ids=["chat", "completions"])
async def test_engines_without_token_ids_go_on_by_text(kind: str, ask: Any) -> None:
    question = ask("a🐝 cafe\u0301 שלום", stop=["#"])
    engine = {"dialect": MessageDialect(), "resume": Resume.MESSAGE}
    whole, path = await asked(question, **engine)
    for at in range(path.frames_seen[1]):
        seen, path = await asked(question, Cut(kind, at), **engine)
        assert seen.view() == whole.view(), at


@pytest.mark.parametrize("kind", KINDS)
async def test_engines_that_cannot_continue_tell_the_cut(kind: str) -> None:
    question = chat("a🐝 cafe\u0301")
    engine = {"dialect": PlainDialect(), "resume": Resume.NONE}
    whole, path = await asked(question, **engine)
    told = 0
    for at in range(path.frames_seen[1]):
        seen, path = await asked(question, Cut(kind, at), **engine)
        assert whole.text.startswith(seen.text)
        assert seen.error == "answer_cut" or seen.view() == whole.view()
        told += bool(seen.error)
    assert told > 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "extra", [{"response_format": {"type": "json_object"}}, {"logprobs": True}, {"n": 2}]
)
async def test_on_a_desk_nothing_that_cannot_go_on_is_sent_before_it_is_whole(
    kind: str, extra: dict[str, Any]
) -> None:
    question = chat("a🐝 cafe\u0301", **extra)
    whole, path = await asked(question, owned=True)
    for at in range(path.frames_seen[1]):
        seen, path = await asked(question, Cut(kind, at), owned=True)
        assert seen.view() == whole.view(), at
        assert path.books.finished[0].resumes == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_the_seam_is_shown_to_those_who_ask(stream: bool) -> None:
    """In the usage object; the nodes' names also as comments of a stream."""
    route, body = chat("a🐝 cafe" * 8, stream=stream)
    if not stream:
        del body["stream_options"]
    path = CutPath()
    await path.start(3)
    seen = await path.ask(route, body, Cut("crash", 2), show_nodes=True)
    nodes = [log.node_name for log in path.books.finished[0].attempts]
    assert len(nodes) == 2
    assert seen.usages[0]["panal"] == {"resumes": 1, "nodes": nodes}
    assert seen.resumes == path.books.finished[0].resumes == 1
    if stream:
        assert all(f": node {name} attempt {number}\n".encode() in seen.data
                   for number, name in enumerate(nodes, start=1))  # fmt: skip
    plain, _ = await asked((route, body), Cut("crash", 2))
    assert "panal" not in plain.usages[0]


async def test_an_answer_too_long_to_be_kept_is_served_and_its_cut_is_told() -> None:
    """The memory of all answers together is a bound; what others keep counts too."""
    route, body = chat("a🐝 cafe\u0301 " * 9)
    for cuts, error in (((), ""), ((Cut("crash", 60),), "answer_cut")):
        path = CutPath()
        await path.start(3)
        path.memory.used_bytes = path.memory.bytes_max - 1000
        seen = await path.ask(route, body, *cuts)
        assert seen.error == error
        assert path.books.finished[0].lost
        assert path.memory.used_bytes == path.memory.bytes_max - 1000
