"""Who pays, and who made it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.ids import DEFAULT_PROJECT, DEFAULT_TENANT, ApiKeyId, NodeId, PrincipalId, RequestId
from panal.core.nodes import DataClass
from panal.core.principals import Principal, Role
from panal.core.requests import InferenceRequest, Route, Usage
from panal.ledger.settlement import charged, settle, useful_tokens
from panal.ledger.values import AttemptMade, AttemptOutcome, Outcome

CALLER = Principal(
    PrincipalId("prn_1"), DEFAULT_TENANT, DEFAULT_PROJECT, Role.USER, ApiKeyId("key_1"), DataClass.INTERNAL
)


def request(model: str = "small") -> InferenceRequest:
    return InferenceRequest(
        request_id=RequestId("req_1"),
        response_id="chatcmpl-1",
        created_utc_s=1_800_000_000,
        route=Route.CHAT,
        model=model,
        stream=True,
        include_usage=False,
        body=b"{}",
        principal=CALLER,
        data_class=DataClass.INTERNAL,
        residency=frozenset(),
        deadline_monotonic_s=0.0,
        total_s_max=60.0,
        traceparent="",
        prompt_tokens_estimate=5,
    )


def attempt(number: int, made: int, delivered: int, outcome=AttemptOutcome.COMPLETE) -> AttemptMade:
    return AttemptMade(number, NodeId(f"node_{number}"), outcome, 50, made, delivered, 1_000)


def settled(outcome: Outcome, shown: Usage, attempts: list[AttemptMade]):
    return settle(request(), outcome, shown, attempts, queued_us=1, first_token_us=2, total_us=3)


def test_a_client_that_left_after_ten_tokens_pays_the_prompt_and_ten_marked_partial():
    result = settled(Outcome.CLIENT_GONE, Usage(50, 10), [attempt(1, 14, 10, AttemptOutcome.CANCELLED)])
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (50, 10)
    assert result.usage.partial
    (made,) = result.contributions
    assert (made.completion_tokens, made.useful_tokens) == (14, 10)


def test_a_request_that_died_before_its_first_token_pays_nothing_but_the_work_is_on_record():
    result = settled(Outcome.FAILED, Usage(50, 0), [attempt(1, 0, 0, AttemptOutcome.LOST)])
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (0, 0)
    assert not result.usage.partial
    assert result.contributions[0].prompt_tokens == 50


def test_a_client_that_left_before_the_first_token_pays_nothing():
    result = settled(Outcome.CLIENT_GONE, Usage(50, 0), [attempt(1, 0, 0, AttemptOutcome.CANCELLED)])
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (0, 0)


def test_a_resumed_request_pays_once_and_each_node_is_credited_its_part():
    attempts = [attempt(1, 12, 10, AttemptOutcome.LOST), attempt(2, 90, 90)]
    result = settled(Outcome.COMPLETE, Usage(50, 100), attempts)
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (50, 100)
    assert result.usage.attempts == 2
    assert not result.usage.partial
    assert [made.useful_tokens for made in result.contributions] == [10, 90]
    assert [made.completion_tokens for made in result.contributions] == [12, 90]


def test_an_answer_that_was_cut_pays_what_the_client_has():
    result = settled(Outcome.CUT, Usage(50, 7), [attempt(1, 7, 7, AttemptOutcome.LOST)])
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (50, 7)
    assert result.usage.partial


def test_an_embedding_pays_its_prompt():
    assert charged(Outcome.COMPLETE, Usage(50, 0)) == Usage(50, 0)


def test_a_refused_request_pays_nothing():
    assert charged(Outcome.REFUSED, Usage(50, 3)) == Usage()


def test_the_slower_of_two_hedged_attempts_gets_no_credit():
    assert useful_tokens([attempt(1, 30, 0, AttemptOutcome.CANCELLED), attempt(2, 20, 20)], 20) == [0, 20]


def test_a_difference_in_counting_is_borne_by_the_last_that_delivered():
    attempts = [attempt(1, 10, 10), attempt(2, 5, 5), attempt(3, 9, 0)]
    assert useful_tokens(attempts, 17) == [10, 7, 0]
    assert useful_tokens(attempts, 8) == [8, 0, 0]


def test_a_name_of_any_length_and_any_marks_becomes_one_that_databases_take():
    result = settle(
        request("x\0y" * 1_000), Outcome.REFUSED, Usage(), [], queued_us=0, first_token_us=None, total_us=1
    )
    assert len(result.usage.model) <= 256
    assert "\0" not in result.usage.model


COUNTS = st.integers(min_value=0, max_value=5_000)
ATTEMPTS = st.lists(
    st.tuples(COUNTS, COUNTS, st.sampled_from(AttemptOutcome)).map(
        lambda parts: (max(parts[0], parts[1]), min(parts[0], parts[1]), parts[2])
    ),
    min_size=1,
    max_size=6,
).map(lambda rows: [attempt(number, *row) for number, row in enumerate(rows, start=1)])


@given(ATTEMPTS, COUNTS, st.sampled_from(Outcome))
def test_useful_tokens_add_up_to_what_was_shown_and_were_made(attempts, shown_tokens, outcome):
    result = settled(outcome, Usage(50, shown_tokens), attempts)
    assert sum(made.useful_tokens for made in result.contributions) == shown_tokens
    for made, given_attempt in zip(result.contributions, attempts, strict=True):
        assert 0 <= made.useful_tokens <= made.completion_tokens
        assert made.completion_tokens >= given_attempt.completion_tokens
        assert made.node_id == given_attempt.node_id


@given(ATTEMPTS, COUNTS, st.sampled_from(Outcome))
def test_nobody_pays_for_more_than_was_shown_however_many_attempts_it_took(attempts, shown_tokens, outcome):
    usage = settled(outcome, Usage(50, shown_tokens, 20), attempts).usage
    assert (usage.prompt_tokens, usage.completion_tokens) in ((50, shown_tokens), (0, 0))
    if outcome is Outcome.COMPLETE:
        assert usage.completion_tokens == shown_tokens
    if outcome in (Outcome.FAILED, Outcome.REFUSED):
        assert usage.prompt_tokens == 0
    assert usage.partial == (usage.prompt_tokens > 0 and outcome is not Outcome.COMPLETE)


@given(st.lists(st.tuples(COUNTS, st.booleans()), min_size=1, max_size=5))
@pytest.mark.filterwarnings("error")
def test_exact_counts_are_left_alone(parts):
    attempts = [attempt(number, made, made if used else 0) for number, (made, used) in enumerate(parts, 1)]
    delivered = [each.delivered_tokens for each in attempts]
    assert useful_tokens(attempts, sum(delivered)) == delivered
