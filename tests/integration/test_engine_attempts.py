"""Attempts under everything that can happen to them: cancels, limits, slow readers, a leaving node."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from panal.node import attempts as attempts_module
from panal.node.agent import Ending
from panal.node.availability import AlwaysAvailable
from panal.node.engines.echo_engine import EchoOptions
from panal.protocol.messages import UNACKNOWLEDGED_BYTES_MAX, BodyPart
from tests.support.echo_bench import EchoBench, echo_bench
from tests.support.node_gateway import KEY, chat, run_attempt, text_of

NUMBERS = " ".join(str(number) for number in range(1, 51))
SLOW: dict[str, Any] = {"delay_token_s": 0.02}


@pytest.fixture
async def bench() -> AsyncIterator[EchoBench]:
    async with echo_bench() as found:
        yield found


async def test_a_cancel_frees_the_engine_in_the_middle_of_an_answer(bench: EchoBench) -> None:
    seen = bench.gateway.open(chat("count 5000", x_echo=SLOW))
    await seen.until(lambda attempt: len(attempt.text) > 3)
    bench.gateway.cancel(seen.name)
    await bench.engine_until(lambda engine: engine.stats.cancelled == 1 and engine.stats.running == 0)
    assert seen.last is None
    report = await bench.gateway.heartbeat_with(lambda beat: beat.replicas[0].running == 0)
    assert report.replicas[0].waiting == 0


async def test_a_cancel_before_the_first_token_reaches_the_engine(bench: EchoBench) -> None:
    seen = bench.gateway.open(chat("count 5", x_echo={"delay_first_s": 30}))
    await bench.engine_until(lambda engine: engine.stats.running == 1)
    bench.gateway.cancel(seen.name)
    await bench.engine_until(lambda engine: engine.stats.cancelled == 1)


async def test_a_cancel_while_the_engine_says_nothing_at_all_ends_the_attempt(bench: EchoBench) -> None:
    bench.engine.frozen = True
    seen = bench.gateway.open(chat("count 5"))
    await bench.gateway.heartbeat_with(lambda beat: beat.replicas[0].running == 1)
    bench.gateway.cancel(seen.name)
    await bench.gateway.heartbeat_with(lambda beat: beat.replicas[0].running == 0)


async def test_a_waiting_attempt_that_is_cancelled_never_reaches_the_engine() -> None:
    async with echo_bench(slots=1) as bench:
        first = bench.gateway.open(chat("count 5000", x_echo=SLOW))
        await first.until(lambda attempt: bool(attempt.text))
        second = bench.gateway.open(chat("count 5"))
        await bench.gateway.heartbeat_with(lambda beat: beat.replicas[0].waiting == 1)
        bench.gateway.cancel(second.name)
        bench.gateway.cancel(first.name)
        await bench.engine_until(lambda engine: engine.stats.cancelled == 1)
        third = bench.gateway.open(chat("count 5"))
        assert (await third.end()).finish == "stop"
        assert bench.engine.stats.started == 2


async def test_more_than_may_wait_are_refused() -> None:
    async with echo_bench(slots=1, waiting_max=1) as bench:
        seen = [bench.gateway.open(chat("count 3", x_echo={"delay_first_s": 0.2})) for _ in range(3)]
        lasts = [await each.end() for each in seen]
        assert [last.finish for last in lasts] == ["stop", "stop", None]
        assert lasts[2].error is not None
        assert (lasts[2].error.kind, lasts[2].error.code) == ("refused", "slots_full")


@pytest.mark.parametrize(
    ("knobs", "limits", "name"),
    [
        ({"delay_first_s": 30}, {"first_token_s_max": 0.2}, "first_token"),
        ({"freeze_after": 3}, {"between_tokens_s_max": 0.2}, "between_tokens"),
        ({"delay_token_s": 0.05}, {"deadline_s": 0.5}, "total"),
    ],
)
async def test_each_time_limit_is_named_and_frees_the_engine(
    bench: EchoBench, knobs: dict[str, Any], limits: dict[str, float], name: str
) -> None:
    last = await bench.gateway.open(chat("count 5000", x_echo=knobs), **limits).end()
    assert last.error is not None
    assert (last.error.kind, last.error.code) == ("timeout", name)
    await bench.engine_until(lambda engine: engine.stats.cancelled == 1)


@pytest.mark.parametrize("choices", [1, 2])
async def test_usage_that_does_not_come_ends_a_complete_answer_and_no_other(
    bench: EchoBench, choices: int
) -> None:
    """The limit between tokens does not count here; several choices may still go on, so it counts there."""
    body = chat("count 5", x_echo={"usage_delay_s": 30.0}) | {"n": choices}
    last = await bench.gateway.open(body, between_tokens_s_max=0.5).end()
    if choices == 1:
        assert last.finish == "stop"
        assert last.usage is not None
        assert last.usage.completion_tokens == len("1 2 3 4 5")
    else:
        assert last.error is not None
        assert last.error.code == "between_tokens"
    await bench.engine_until(lambda engine: engine.stats.running == 0)


async def test_the_first_limit_covers_an_engine_that_sends_no_headers(bench: EchoBench) -> None:
    bench.engine.frozen = True
    last = await bench.gateway.open(chat("count 5"), first_token_s_max=0.2).end()
    assert last.error is not None and last.error.code == "first_token"


async def test_a_frozen_engine_is_told_as_not_healthy(bench: EchoBench) -> None:
    bench.engine.frozen = True
    await bench.gateway.heartbeat_with(lambda beat: not beat.replicas[0].healthy, timeout_s=10)
    bench.engine.frozen = False
    await bench.gateway.heartbeat_with(lambda beat: beat.replicas[0].healthy, timeout_s=10)


async def test_an_attempt_for_another_replica_is_refused_and_one_for_another_instance_not_answered(
    bench: EchoBench,
) -> None:
    """The other instance may be the first one of a copied identity, and be answering (P24)."""
    right = {"instance": bench.agent.instance, "replica": bench.agent.replica}
    for name, wrong in (("req_1.1", {"instance": "ins_old"}), ("req_2.1", {"replica": "rep_old"})):
        bench.gateway.send_run(run_attempt(name, chat("count 5"), **{**right, **wrong}))
    last = await bench.gateway.attempts["req_2.1"].end()
    assert last.error is not None and last.error.code == "wrong_replica"
    assert bench.gateway.attempts["req_1.1"].events == []
    assert bench.engine.stats.started == 0


async def test_the_same_attempt_twice_runs_once(bench: EchoBench) -> None:
    seen = bench.gateway.open(chat("count 50", x_echo={"delay_token_s": 0.001}))
    run = run_attempt(seen.name, chat("count 50"), instance=bench.agent.instance, replica=bench.agent.replica)
    bench.gateway.send_run(run)
    await seen.end()
    assert text_of(seen.data) == NUMBERS
    assert bench.engine.stats.started == 1


async def test_a_large_body_arrives_in_pieces(bench: EchoBench) -> None:
    question = "x" * 500_000
    body = msgspec.json.encode(chat(question, max_tokens=5))
    pieces = [body[start : start + 200_000] for start in range(0, len(body), 200_000)]
    parts = [
        BodyPart(attempt="req_1.1", number=number, body=piece)
        for number, piece in enumerate(pieces[1:], start=2)
    ]
    seen = bench.gateway.open({}, body=pieces[0], parts=len(pieces), body_parts=parts)
    await seen.end()
    assert text_of(seen.data) == "xxxxx"


async def test_a_reader_who_takes_nothing_stops_its_engine_and_nobody_elses() -> None:
    async with echo_bench(acknowledge=False) as bench:
        slow = bench.gateway.open(chat("count 100000"))
        await slow.until(lambda attempt: len(attempt.data) > UNACKNOWLEDGED_BYTES_MAX - 70_000)
        other = bench.gateway.open(chat("count 50"))
        await other.end()
        assert text_of(other.data) == NUMBERS
        sent = len(slow.data)
        assert sent <= UNACKNOWLEDGED_BYTES_MAX
        assert slow.last is None
        bench.gateway.acknowledges = True
        bench.gateway.acknowledge(slow.name)
        await slow.until(lambda attempt: len(attempt.data) > sent + UNACKNOWLEDGED_BYTES_MAX)
        bench.gateway.cancel(slow.name)


async def test_a_leaving_node_says_so_at_once_and_stops_within_its_grace() -> None:
    async with echo_bench(slots=2, grace_s=0.5) as bench:
        long = bench.gateway.open(chat("count 5000", x_echo=SLOW))
        short = bench.gateway.open(chat("count 9", x_echo={"delay_token_s": 0.01}))
        await long.until(lambda attempt: bool(attempt.text))
        await short.until(lambda attempt: bool(attempt.text))
        waiting = bench.gateway.open(chat("count 9"))
        await bench.gateway.heartbeat_with(lambda beat: beat.replicas[0].waiting == 1)
        bench.agent.stop()
        await waiting.end()
        await long.end()
        assert await bench.running.task is Ending.STOPPED
        assert any(event.leaving for event in long.events)
        assert long.last is not None and long.last.error is not None and long.last.error.kind == "leaving"
        assert short.last is not None and short.last.finish == "stop"
        assert waiting.last is not None and waiting.last.error is not None
        assert waiting.last.error.kind == "leaving"
        assert bench.engine.stats.running == 0
        assert NUMBERS.startswith(long.text[: len(NUMBERS)])


async def test_a_bus_that_stays_away_ends_the_attempts(
    bench: EchoBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts_module, "DISCONNECTED_S_MAX", 0.2)
    seen = bench.gateway.open(chat("count 5000", x_echo=SLOW))
    await seen.until(lambda attempt: bool(attempt.text))
    bench.broker.cut(KEY)
    await bench.engine_until(lambda engine: engine.stats.running == 0)
    bench.broker.restore(KEY)
    after = bench.gateway.open(chat("count 5"))
    assert (await after.end()).finish == "stop"


async def test_a_bus_that_is_back_soon_loses_nothing_that_was_not_sent(bench: EchoBench) -> None:
    seen = bench.gateway.open(chat("count 50", x_echo={"delay_token_s": 0.002}))
    await seen.until(lambda attempt: len(attempt.text) > 10)
    bench.broker.cut(KEY)
    await asyncio.sleep(0.05)
    bench.broker.restore(KEY)
    await seen.end()
    assert text_of(seen.data) == NUMBERS
    assert seen.numbers == list(range(len(seen.numbers)))


async def test_final_counts_are_reported_until_they_were_seen(bench: EchoBench) -> None:
    seen = bench.gateway.open(chat("count 9"))
    await seen.end()
    report = await bench.controller.report_with(lambda found: bool(found.counts))
    [counts] = report.counts
    assert (counts.attempt, counts.outcome, counts.completion_tokens) == (seen.name, "finished", 17)
    assert counts.prompt_tokens == len("<user>count 9\n<assistant>")
    bench.controller.instruct("counts_seen", attempts=[seen.name])


async def test_a_cordoned_node_refuses_until_it_is_uncordoned(bench: EchoBench) -> None:
    name = bench.controller.instruct("cordon", reason="being moved")
    await bench.gateway.heartbeat_with(lambda beat: beat.state == "draining" and beat.reason == "being moved")
    await bench.controller.report_with(lambda report: report.instruction == name)
    last = await bench.gateway.open(chat("count 5")).end()
    assert last.error is not None and last.error.message == "being moved"
    bench.controller.instruct("uncordon")
    await bench.gateway.ready()
    assert (await bench.gateway.open(chat("count 5")).end()).finish == "stop"


async def test_a_draining_node_lets_answers_end(bench: EchoBench) -> None:
    seen = bench.gateway.open(chat("count 50", x_echo={"delay_token_s": 0.002}))
    await seen.until(lambda attempt: bool(attempt.text))
    bench.controller.instruct("drain")
    assert (await seen.end()).finish == "stop"
    assert not any(event.leaving for event in seen.events)
    bench.controller.instruct("uncordon")
    await bench.gateway.ready()
    assert (await bench.gateway.open(chat("count 5")).end()).finish == "stop"


async def test_a_drain_that_takes_too_long_hands_over() -> None:
    async with echo_bench(availability=AlwaysAvailable(drain_s=0.1)) as bench:
        seen = bench.gateway.open(chat("count 5000", x_echo=SLOW))
        await seen.until(lambda attempt: bool(attempt.text))
        bench.controller.instruct("drain")
        await seen.until(lambda attempt: any(event.leaving for event in attempt.events))
        bench.gateway.cancel(seen.name)
        await bench.engine_until(lambda engine: engine.stats.running == 0)


async def test_an_instance_that_is_refused_ends_with_the_reason(bench: EchoBench) -> None:
    bench.controller.instruct("refuse", instance="ins_other", reason="not us")
    bench.controller.instruct("refuse", instance=bench.agent.instance, reason="a copy")
    async with asyncio.timeout(10):
        assert await bench.running.task is Ending.REFUSED_INSTANCE
    assert bench.agent.ending_reason == "a copy"


async def test_a_refused_credential_ends_the_agent(bench: EchoBench) -> None:
    bench.broker.refuse(KEY, "revoked")
    async with asyncio.timeout(10):
        assert await bench.running.task is Ending.CREDENTIAL_REFUSED


async def test_many_streams_share_messages() -> None:
    options = EchoOptions(slots=64, delay_first_s=0.05, delay_token_s=0.01)
    async with echo_bench(options=options, slots=64) as bench:
        seen = [bench.gateway.open(chat("count 20")) for _ in range(40)]
        for each in seen:
            await each.end()
        expected = " ".join(str(number) for number in range(1, 21))
        assert all(text_of(each.data) == expected for each in seen)
        frames = sum(len(each.numbers) for each in seen)
        assert bench.gateway.messages < frames / 2


async def test_an_instruction_of_an_earlier_term_is_ignored(bench: EchoBench) -> None:
    """As of a leader whose machine stood still while another one took over."""
    bench.controller.instruct("cordon", reason="being moved", term=1_790_000_007)
    await bench.gateway.heartbeat_with(lambda beat: beat.reason == "being moved")
    bench.controller.instruct("uncordon", term=1_790_000_006)
    name = bench.controller.instruct("accept", term=1_790_000_007)
    await bench.controller.report_with(lambda report: report.instruction == name)
    assert bench.agent.may_serve() == "being moved"
    bench.controller.instruct("uncordon", term=1_790_000_008)
    await bench.gateway.ready()
