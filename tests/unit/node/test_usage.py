"""Counting tokens, whom to believe, and when it is an estimate."""

from panal.node.engines.engine import Delta
from panal.node.usage import UsageTally
from panal.protocol.messages import Emitted, TokenUsage


def tally(deltas: list[Delta], emitted: Emitted | None = None) -> TokenUsage:
    counter = UsageTally(emitted, prompt_characters=40)
    for delta in deltas:
        counter.add(delta)
    return counter.total()


def token(n: int = 1, *, ids: bool = True) -> Delta:
    return Delta(text="x" * n, token_ids=list(range(n)) if ids else None, tokens=n)


def said(prompt: int, completion: int, cached: int = 0) -> Delta:
    return Delta(usage=TokenUsage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached))


def test_an_engine_that_tells_the_truth_is_believed_with_its_hidden_end_token() -> None:
    usage = tally([token(3), said(5, 4, 2)])
    assert usage == TokenUsage(prompt_tokens=5, completion_tokens=4, cached_tokens=2)


def test_an_engine_that_lies_is_not_believed_where_ids_were_seen() -> None:
    assert tally([token(30), said(5, 1)]).completion_tokens == 30
    assert tally([token(30), said(5, 500)]).completion_tokens == 30


def test_without_ids_the_engine_is_believed_unless_it_says_less_than_was_seen() -> None:
    assert tally([token(3, ids=False), said(5, 9)]).completion_tokens == 9
    assert tally([token(3, ids=False), said(5, 1)]).completion_tokens == 3


def test_usage_in_every_chunk_is_the_total_so_far_and_not_added_up() -> None:
    assert tally([said(5, 1), token(), said(5, 2), token(), said(5, 2)]).completion_tokens == 2


def test_what_is_left_out_is_counted_and_marked_as_an_estimate() -> None:
    usage = tally([token(3, ids=False)])
    assert usage == TokenUsage(prompt_tokens=10, completion_tokens=3, estimated=True)


def test_counted_ids_are_no_estimate_when_the_prompt_is_known() -> None:
    assert not tally([Delta(usage=TokenUsage(prompt_tokens=5)), token(3)]).estimated


def test_a_resumed_answer_counts_the_prompt_once_and_all_that_was_made() -> None:
    emitted = Emitted(text="abcd", prompt_tokens=5, completion_tokens=4)
    assert tally([token(3), said(9, 3)], emitted) == TokenUsage(prompt_tokens=5, completion_tokens=7)


def test_a_prompt_that_nobody_counted_before_the_resume_is_the_new_one_less_the_old_answer() -> None:
    assert tally([token(3), said(9, 3)], Emitted(text="abcd", completion_tokens=4)).prompt_tokens == 5


def test_what_a_node_made_itself_leaves_out_other_attempts() -> None:
    counter = UsageTally(Emitted(text="abcd", prompt_tokens=5, completion_tokens=4), 40)
    counter.add(token(3))
    counter.add(said(9, 3))
    assert counter.made() == (9, 3)
