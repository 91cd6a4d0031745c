"""Small parts of a node: counts, speeds, limits, bodies, embeddings, heartbeats."""

import asyncio
import base64
import struct

import pytest

from panal.core.errors import AttemptTimeout, BadRequest, BusError, EngineFailed, NodeRefused
from panal.node.bodies import BODY_BYTES_MAX, BodyParts
from panal.node.counts import SEND_AGAIN_S, KeptCounts
from panal.node.embeddings import check_embeddings_request, embeddings_answer
from panal.node.heartbeats import Heartbeats
from panal.node.limits import AttemptLimits
from panal.node.speeds import MeasuredSpeeds
from panal.protocol.messages import AttemptCounts, BodyPart, Heartbeat
from tests.support.node_gateway import run_attempt


def counts(name: str) -> AttemptCounts:
    return AttemptCounts(
        attempt=name, model="m", prompt_tokens=1, completion_tokens=1, duration_s=1.0, outcome="finished"
    )


def test_counts_are_sent_again_until_they_were_seen() -> None:
    kept = KeptCounts()
    kept.keep(counts("a"))
    first = kept.to_report(100.0)
    kept.sent(first, 100.0)
    assert [each.attempt for each in first] == ["a"]
    assert kept.to_report(100.0 + SEND_AGAIN_S / 2) == []
    assert [each.attempt for each in kept.to_report(100.0 + SEND_AGAIN_S)] == ["a"]
    kept.seen(["a", "never heard of"])
    assert kept.to_report(1000.0) == [] and len(kept) == 0


def test_counts_are_bounded_and_the_loss_is_counted() -> None:
    kept = KeptCounts(kept_max=3)
    for n in range(5):
        kept.keep(counts(str(n)))
    assert [each.attempt for each in kept.to_report(0.0)] == ["2", "3", "4"]
    assert kept.dropped == 2


def test_speeds_are_averaged_and_short_answers_say_nothing() -> None:
    speeds = MeasuredSpeeds()
    speeds.add_prefill(2, 1.0)
    speeds.add_decode(1, 1.0)
    assert speeds == MeasuredSpeeds()
    speeds.add_prefill(100, 1.0)
    speeds.add_prefill(200, 1.0)
    assert speeds.prefill_tokens_per_s == pytest.approx(120.0)
    speeds.add_decode(10, 1.0)
    speeds.add_decode(10, 2.0)
    assert speeds.decode_s_per_token == pytest.approx(0.12)


async def expired_limit(
    *, first: float = 60.0, between: float = 60.0, total: float = 60.0, progress: bool = False
) -> AttemptTimeout:
    seen: asyncio.Future[AttemptTimeout] = asyncio.get_running_loop().create_future()
    limits = AttemptLimits(
        first_token_s=first, between_tokens_s=between, total_s=total, expired=seen.set_result
    )
    if progress:
        limits.progress()
    async with asyncio.timeout(10):
        error = await seen
    limits.close()
    return error


async def test_each_limit_is_named() -> None:
    assert (await expired_limit(first=0.01)).limit == "first_token"
    assert (await expired_limit(between=0.01, progress=True)).limit == "between_tokens"
    assert (await expired_limit(total=0.01)).limit == "total"


async def test_waiting_for_the_reader_is_not_the_engines_time() -> None:
    seen: list[AttemptTimeout] = []
    limits = AttemptLimits(first_token_s=5.0, between_tokens_s=0.02, total_s=0.3, expired=seen.append)
    limits.progress()
    limits.pause()
    async with asyncio.timeout(10):
        while not seen:
            await asyncio.sleep(0.01)
    assert [error.limit for error in seen] == ["total"]


async def test_a_body_in_pieces_is_put_together_in_order() -> None:
    run = run_attempt("r.1", {}, body=b'{"a', parts=3)
    parts = BodyParts(run)
    parts.add(BodyPart(attempt="r.1", number=3, body=b"1}"))
    parts.add(BodyPart(attempt="r.1", number=3, body=b"junk"))
    parts.add(BodyPart(attempt="r.1", number=9, body=b"junk"))
    parts.add(BodyPart(attempt="r.1", number=2, body=b'":'))
    assert await parts.whole() == {"a": 1}


async def test_a_body_that_is_no_object_is_the_callers_mistake() -> None:
    with pytest.raises(BadRequest):
        await BodyParts(run_attempt("r.1", {}, body=b"[1]")).whole()


async def test_a_body_over_the_bound_never_gets_whole() -> None:
    parts = BodyParts(run_attempt("r.1", {}, body=b"{", parts=2))
    parts.add(BodyPart(attempt="r.1", number=2, body=b"x" * BODY_BYTES_MAX))
    assert parts.bytes == 1
    with pytest.raises(NodeRefused):
        await BodyParts(run_attempt("r.1", {}, body=b"{", parts=100_000)).whole()


VECTOR = [0.25, -1.5, 3.0]


def answer() -> dict[str, object]:
    return {
        "object": "list",
        "model": "engine's",
        "data": [{"object": "embedding", "index": 0, "embedding": list(VECTOR)}],
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }


def test_embeddings_come_as_floats_or_as_little_endian_float32() -> None:
    data, usage = embeddings_answer(answer(), {}, "m")
    assert b'"embedding":[0.25,-1.5,3.0]' in data and b'"model":"m"' in data
    assert usage.prompt_tokens == 4
    data, _ = embeddings_answer(answer(), {"encoding_format": "base64"}, "m")
    encoded = data.split(b'"embedding":"')[1].split(b'"')[0]
    assert struct.unpack("<3f", base64.b64decode(encoded)) == tuple(VECTOR)


def test_dimensions_are_honoured_or_refused() -> None:
    embeddings_answer(answer(), {"dimensions": 3}, "m")
    with pytest.raises(BadRequest) as refused:
        embeddings_answer(answer(), {"dimensions": 2}, "m")
    assert refused.value.param == "dimensions"
    for wrong in ({"dimensions": 0}, {"dimensions": "3"}, {"encoding_format": "hex"}):
        with pytest.raises(BadRequest):
            check_embeddings_request(wrong)


def test_an_answer_without_vectors_is_the_engines_failure() -> None:
    for wrong in ({}, {"data": [{}]}, {"data": [{"embedding": []}]}):
        with pytest.raises(EngineFailed):
            embeddings_answer(dict(wrong), {}, "m")
    with pytest.raises(EngineFailed):
        embeddings_answer({"data": [{"embedding": ["x"]}]}, {"encoding_format": "base64"}, "m")


async def test_heartbeats_are_numbered_and_a_change_is_told_at_once() -> None:
    sent: list[Heartbeat] = []
    state = ["available"]
    told = asyncio.Event()

    def send(heartbeat: Heartbeat) -> None:
        sent.append(heartbeat)
        told.set()
        if len(sent) == 2:
            raise BusError("down")

    def build(sequence: int) -> Heartbeat:
        return Heartbeat(node="n", instance="i", sequence=sequence, state=state[0])

    heartbeats = Heartbeats(build, send)
    task = asyncio.create_task(heartbeats.run())
    async with asyncio.timeout(10):
        await told.wait()
        state[0] = "owner"
        heartbeats.now()
        while len(sent) < 3:
            told.clear()
            await told.wait()
    task.cancel()
    assert [beat.sequence for beat in sent[:3]] == [0, 1, 2]
    assert sent[1].state == "owner"
    assert heartbeats.unsent == 1
