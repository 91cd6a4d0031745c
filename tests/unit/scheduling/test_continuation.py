"""What follows after an attempt ended: every failure in every state has one answer."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.errors import (
    AnswerCut,
    AttemptTimeout,
    ClientGone,
    EngineFailed,
    EngineRefused,
    FrameGap,
    NodeLeaving,
    NodeLost,
    NodeRefused,
    PanalError,
)
from panal.scheduling.continuation import (
    ATTEMPTS_MAX,
    KEPT_TOKENS_MAX,
    REFUSALS_MAX,
    RESUMES_MAX,
    AnswerSoFar,
    Budgets,
    GiveUp,
    GoOn,
    KeptMemory,
    TryAgain,
    next_step,
)

BREAKS: list[PanalError] = [
    NodeLost("lost"),
    NodeLeaving("leaving"),
    EngineFailed("crash"),
    FrameGap("gap"),
    AttemptTimeout("first_token", 1.0),
]


def begun(**changes: object) -> AnswerSoFar:
    so_far = AnswerSoFar(
        breaks=1, sent=True, role_sent=True, pieces=["a"], token_ids=array("q", [1]), completion_tokens=1
    )
    for name, value in changes.items():
        setattr(so_far, name, value)
    return so_far


@pytest.mark.parametrize("failure", BREAKS, ids=lambda failure: failure.code)
def test_nothing_sent_means_a_fresh_try_that_nobody_sees(failure: PanalError) -> None:
    assert next_step(AnswerSoFar(tries=1), failure, resumable=True, twin="t") == TryAgain()
    assert next_step(AnswerSoFar(tries=1), failure, resumable=False, twin="") == TryAgain()


@pytest.mark.parametrize("failure", BREAKS, ids=lambda failure: failure.code)
def test_something_sent_means_going_on_from_the_last_token(failure: PanalError) -> None:
    assert next_step(begun(), failure, resumable=True, twin="t") == GoOn()


@pytest.mark.parametrize(
    ("so_far", "resumable", "twin"),
    [
        (begun(), False, "t"),
        (begun(), True, ""),
        (begun(opaque=True), True, "t"),
        (begun(lost=True), True, "t"),
        (begun(breaks=RESUMES_MAX + 1), True, "t"),
    ],
    ids=["not resumable", "no twin", "tool call begun", "too long", "too often"],
)
def test_what_cannot_go_on_is_told_as_cut(so_far: AnswerSoFar, resumable: bool, twin: str) -> None:
    step = next_step(so_far, NodeLost("lost"), resumable=resumable, twin=twin)
    assert isinstance(step, GiveUp)
    assert isinstance(step.error, AnswerCut)


def test_the_callers_mistake_and_the_callers_going_are_final() -> None:
    refused = EngineRefused("too long", status=400, body=b"{}")
    for failure in (refused, ClientGone("gone")):
        for so_far in (AnswerSoFar(tries=1), begun()):
            assert next_step(so_far, failure, resumable=True, twin="t") == GiveUp(failure)


def test_a_refusing_node_costs_no_attempt_but_is_bounded() -> None:
    failure = NodeRefused("in use by its owner")
    not_begun = AnswerSoFar(tries=ATTEMPTS_MAX - 1, refusals=1)
    assert next_step(not_begun, failure, resumable=True, twin="t") == TryAgain()
    not_begun.refusals = REFUSALS_MAX
    assert next_step(not_begun, failure, resumable=True, twin="t") == GiveUp(failure)


@given(
    tries=st.integers(1, 5),
    breaks=st.integers(0, 5),
    refusals=st.integers(0, 10),
    sent=st.booleans(),
    opaque=st.booleans(),
    lost=st.booleans(),
    resumable=st.booleans(),
    twin=st.sampled_from(["", "t"]),
    failure=st.sampled_from([*BREAKS, NodeRefused("busy")]),
)
def test_text_that_was_sent_is_never_started_over(
    tries: int,
    breaks: int,
    refusals: int,
    sent: bool,
    opaque: bool,
    lost: bool,
    resumable: bool,
    twin: str,
    failure: PanalError,
) -> None:
    so_far = AnswerSoFar(KeptMemory(), tries, breaks, refusals, sent, opaque, sent, lost)
    so_far.pieces = ["x"] if sent else []
    step = next_step(so_far, failure, resumable=resumable, twin=twin)
    if sent:
        assert not isinstance(step, TryAgain)
    if not resumable or not twin or opaque or lost:
        assert not isinstance(step, GoOn)


def test_a_refusal_in_the_middle_of_an_answer_forgets_nothing() -> None:
    """After a resume was refused, the next node must go on, not begin."""
    step = next_step(begun(), NodeRefused("busy"), resumable=True, twin="t")
    assert step == GoOn()


def test_a_very_long_answer_is_not_kept_without_bound() -> None:
    so_far = AnswerSoFar(breaks=1, sent=True)
    for _ in range(3):
        so_far.completion_tokens += KEPT_TOKENS_MAX // 2 + 1
        so_far.keep("piece", [1])
    assert so_far.pieces == []
    assert so_far.token_ids is None
    assert isinstance(next_step(so_far, NodeLost("lost"), resumable=True, twin="t"), GiveUp)


def test_tries_and_resumes_have_budgets_of_their_own() -> None:
    budgets = Budgets(attempts_max=1, resumes_max=2)
    one_try = AnswerSoFar(tries=1)
    assert isinstance(next_step(one_try, NodeLost("x"), resumable=True, twin="t", budgets=budgets), GiveUp)
    for breaks, step in ((1, GoOn), (2, GoOn), (3, GiveUp)):
        so_far = begun(tries=1, breaks=breaks)
        assert isinstance(next_step(so_far, NodeLost("x"), resumable=True, twin="t", budgets=budgets), step)


@given(st.lists(st.tuples(st.text(max_size=30), st.lists(st.integers(0, 2**31), max_size=5)), max_size=30))
def test_the_memory_of_all_answers_is_bounded_and_given_back(said: list[tuple[str, list[int]]]) -> None:
    memory = KeptMemory(bytes_max=1000)
    answers = [AnswerSoFar(memory), AnswerSoFar(memory)]
    for number, (text, ids) in enumerate(said):
        so_far = answers[number % 2]
        so_far.keep(text, ids)
        assert memory.used_bytes <= 1000
        assert memory.used_bytes == sum(each.kept_bytes for each in answers)
        assert so_far.kept_bytes >= sum(len(piece.encode()) for piece in so_far.pieces)
        if so_far.lost:
            assert so_far.kept_bytes == 0
            assert so_far.emitted() is None
    for so_far in answers:
        so_far.release()
    assert memory.used_bytes == 0
