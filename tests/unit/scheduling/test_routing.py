"""Filter, score, pick: decisions over plain values."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from panal.core.ids import InstanceId, NodeId, NodeKey, ReplicaId
from panal.core.nodes import DataClass, NodeClass
from panal.core.requests import Route
from panal.scheduling.replicas import STALE_AFTER_S, Need, OwnLoad, ReplicaView
from panal.scheduling.routing import (
    HAND_OVER_S,
    Candidate,
    choose,
    departure_s,
    has_room,
    predicted_seconds,
    unfit,
)

NOW_S = 1000.0


def a_replica(number: int = 0, **changes: Any) -> ReplicaView:
    values: dict[str, Any] = {
        "key": NodeKey(f"U{number}"),
        "node_id": NodeId(f"node_{number}"),
        "node_name": f"desk-{number}",
        "instance": InstanceId("ins_1"),
        "replica_id": ReplicaId(f"node_{number}/rep"),
        "reported_id": "rep",
        "model": "m",
        "twin": "twin",
        "resume": "token_ids",
        "routes": frozenset({"chat"}),
        "context_tokens": 4096,
        "slots": 4,
        "node_class": NodeClass.DEDICATED,
        "country": "ES",
        "data_class": DataClass.INTERNAL,
        "takes_work": True,
        "healthy": True,
        "reported_s": NOW_S,
        "prefill_tokens_per_s": 1000.0,
        "decode_s_per_token": 0.02,
    }
    return ReplicaView(**(values | changes))


def a_need(**changes: Any) -> Need:
    values: dict[str, Any] = {
        "model": "m",
        "route": Route.CHAT,
        "prompt_tokens": 100,
        "output_tokens": 100,
        "allowed": lambda replica: True,
    }
    return Need(**(values | changes))


def candidates(*replicas: ReplicaView) -> list[Candidate]:
    return [(replica, OwnLoad()) for replica in replicas]


def test_takes_the_replica_that_is_done_first_and_not_the_emptiest() -> None:
    slow_and_empty = a_replica(0, decode_s_per_token=0.2)
    fast_and_busy = a_replica(1, running=2)
    chosen = choose(candidates(slow_and_empty, fast_and_busy), a_need(), NOW_S, lambda count: 0)
    assert chosen is not None and chosen.replica is fast_and_busy


def test_corrects_an_old_report_by_what_was_sent_since() -> None:
    one, two = a_replica(0), a_replica(1)
    pair = [
        (one, OwnLoad(sent_since_report=3, running=3, prefill_tokens_since_report=3000)),
        (two, OwnLoad()),
    ]
    chosen = choose(pair, a_need(), NOW_S, lambda count: 0)
    assert chosen is not None and chosen.replica is two


def test_an_unmeasured_replica_counts_as_slow_and_never_as_the_best() -> None:
    unmeasured = a_replica(0, prefill_tokens_per_s=0.0, decode_s_per_token=0.0)
    measured = a_replica(1)
    chosen = choose(candidates(unmeasured, measured), a_need(), NOW_S, lambda count: 0)
    assert chosen is not None and chosen.replica is measured


def test_each_reason_not_to_fit_has_its_words() -> None:
    reasons = {
        "takes no work": (a_replica(takes_work=False), a_need()),
        "engine is not healthy": (a_replica(healthy=False), a_need()),
        "not heard of lately": (a_replica(reported_s=NOW_S - STALE_AFTER_S - 0.1), a_need()),
        "already failed this request": (a_replica(), a_need(excluded=frozenset({a_replica().replica_id}))),
        "does not serve this route": (a_replica(), a_need(route=Route.EMBEDDINGS)),
        "cannot continue this answer": (a_replica(twin="other"), a_need(twin="twin")),
        "context is too short": (a_replica(context_tokens=10), a_need()),
        "may not see this data": (a_replica(), a_need(allowed=lambda replica: False)),
    }
    for words, (replica, need) in reasons.items():
        assert unfit(replica, need, NOW_S) == words
    assert unfit(a_replica(), a_need(), NOW_S) is None


def test_no_resume_is_asked_of_an_engine_that_cannot() -> None:
    assert unfit(a_replica(resume="none"), a_need(twin="twin"), NOW_S) == "cannot continue this answer"


def test_what_cannot_be_resumed_goes_to_machines_without_an_owner_first() -> None:
    desk = a_replica(0, node_class=NodeClass.DESKTOP, decode_s_per_token=0.001)
    server = a_replica(1, decode_s_per_token=0.1)
    pair = candidates(desk, server)
    for_desk = choose(pair, a_need(), NOW_S, lambda count: 0)
    for_server = choose(pair, a_need(resumable=False), NOW_S, lambda count: 0)
    assert for_desk is not None and for_desk.replica is desk
    assert for_server is not None and for_server.replica is server


def test_many_replicas_are_sampled_and_all_are_asked_when_the_sample_does_not_fit() -> None:
    broken = [a_replica(number, healthy=False) for number in range(99)]
    good = a_replica(99)
    chosen = choose(candidates(*broken, good), a_need(), NOW_S, lambda count: 0)
    assert chosen is not None and chosen.replica is good


def test_a_replica_that_failed_a_moment_ago_is_tried_last_but_not_never() -> None:
    failed, other = a_replica(0), a_replica(1, decode_s_per_token=1.0)
    distrusted = (failed, OwnLoad(inhibited_until_s=NOW_S + 1.0))
    chosen = choose([distrusted, (other, OwnLoad())], a_need(), NOW_S, lambda count: 0)
    assert chosen is not None and chosen.replica is other
    alone = choose([distrusted], a_need(), NOW_S, lambda count: 0)
    assert alone is not None and alone.replica is failed
    later = choose([distrusted, (other, OwnLoad())], a_need(), NOW_S + 1.0, lambda count: 0)
    assert later is not None and later.replica is failed


@given(
    running=st.integers(0, 10),
    own=st.integers(0, 10),
    waiting=st.integers(0, 3),
    slots=st.integers(1, 8),
)
def test_a_replica_never_gets_more_than_its_slots(running: int, own: int, waiting: int, slots: int) -> None:
    replica = a_replica(running=running, waiting=waiting, slots=slots)
    load = OwnLoad(running=own)
    if has_room(replica, load):
        assert own < slots
        assert own + max(0, running + waiting - own) < slots


@given(
    healthy=st.lists(st.booleans(), max_size=30),
    stale=st.lists(st.booleans(), max_size=30),
    seed=st.integers(0, 1_000),
)
def test_whatever_is_chosen_fits(healthy: list[bool], stale: list[bool], seed: int) -> None:
    replicas = [
        a_replica(number, healthy=well, reported_s=NOW_S - (5.0 if old else 0.0))
        for number, (well, old) in enumerate(zip(healthy, stale, strict=False))
    ]
    chosen = choose(candidates(*replicas), a_need(), NOW_S, lambda count: seed % count)
    fitting = [replica for replica in replicas if unfit(replica, a_need(), NOW_S) is None]
    assert (chosen is None) == (not fitting)
    if chosen is not None:
        assert chosen.replica in fitting


@given(tokens=st.integers(1, 100_000), more=st.integers(1, 10_000))
def test_more_work_is_never_predicted_to_be_quicker(tokens: int, more: int) -> None:
    replica, load = a_replica(), OwnLoad()
    first_s, total_s = predicted_seconds(replica, load, a_need(prompt_tokens=tokens), NOW_S)
    later_s, end_s = predicted_seconds(replica, load, a_need(prompt_tokens=tokens + more), NOW_S)
    assert later_s > first_s
    assert end_s > total_s
    busy = replace(replica, pending_prefill_tokens=1000)
    assert predicted_seconds(busy, load, a_need(prompt_tokens=tokens), NOW_S)[0] > first_s


def test_answers_that_a_desk_could_not_pass_on_go_to_dedicated_nodes_first() -> None:
    """Also where it is the desk's engine, and not the request, that allows no going on."""
    server = a_replica(0, node_class=NodeClass.DEDICATED, decode_s_per_token=0.5, resume="none")

    def chosen(need: Need, **desk: Any) -> str:
        pair = candidates(server, a_replica(1, node_class=NodeClass.DESKTOP, **desk))
        choice = choose(pair, need, NOW_S, lambda count: 0)
        assert choice is not None
        return choice.replica.node_name

    assert chosen(a_need()) == "desk-1"
    assert chosen(a_need(), resume="none") == "desk-0"
    assert chosen(a_need(), twin="") == "desk-0"
    assert chosen(a_need(tools=True)) == "desk-0"
    assert chosen(a_need(tools=True), continues_messages=True) == "desk-1"


def test_only_twins_that_know_the_way_continue_an_answer() -> None:
    need = a_need(twin="twin", tools=True)
    assert unfit(a_replica(continues_messages=True), need, NOW_S) is None
    for other in (
        a_replica(),
        a_replica(continues_messages=True, resume="none"),
        a_replica(continues_messages=True, twin="another"),
    ):
        assert unfit(other, need, NOW_S) == "cannot continue this answer"
    assert unfit(a_replica(resume="message"), a_need(twin="twin"), NOW_S) is None


# --- owners who may come -------------------------------------------------------------------------------


def test_of_two_equal_desks_the_one_whose_owner_is_less_likely_to_come_is_taken() -> None:
    risky, calm = a_replica(0, hazard_per_h=2.0), a_replica(1, hazard_per_h=0.1)
    for order in ((risky, calm), (calm, risky)):
        choice = choose(candidates(*order), a_need(output_tokens=2000), NOW_S, lambda n: 0)
        assert choice is not None
        assert choice.replica is calm


def test_the_risk_is_a_mild_word_against_speed() -> None:
    risky, slow = a_replica(0, hazard_per_h=5.0), a_replica(1, decode_s_per_token=0.03)
    choice = choose(candidates(risky, slow), a_need(output_tokens=1000), NOW_S, lambda n: 0)
    assert choice is not None
    assert choice.replica is risky


SECONDS = st.floats(0.01, 1000.0)


@given(st.floats(0.0, 10.0), st.floats(0.0, 10.0), SECONDS, SECONDS, SECONDS)
def test_the_cost_of_a_departure_grows_with_hazard_and_length_and_is_bounded(
    one: float, other: float, first_s: float, more_s: float, longer_s: float
) -> None:
    low, high = sorted((one, other))
    total_s = first_s + more_s

    def cost_s(hazard: float, seconds: float) -> float:
        return departure_s(a_replica(hazard_per_h=hazard), first_s, seconds)

    assert 0.0 <= cost_s(low, total_s) <= cost_s(high, total_s) <= first_s + HAND_OVER_S
    assert cost_s(high, total_s) <= cost_s(high, total_s + longer_s)
    assert cost_s(0.0, total_s) == 0.0
