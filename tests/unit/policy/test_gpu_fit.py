"""Does it fit: on one card's free memory minus the reserve, or nowhere, with a word on every card."""

from hypothesis import given
from hypothesis import strategies as st

from panal.core.gpus import GIB, GpuFacts
from panal.policy.gpu_fit import (
    RESERVE_BYTES,
    choose,
    first_estimate_bytes,
    raised_estimate_bytes,
)
from tests.support.gpus import CARD, OTHER, gpu

THIRD = "GPU-33333333-0000-4000-8000-000000000003"


def test_the_smallest_card_that_fits_is_taken() -> None:
    cards = [
        gpu(total_gib=48, used_gib=0),
        gpu(OTHER, total_gib=16, used_gib=0),
        gpu(THIRD, total_gib=8, used_gib=0),
    ]
    assert choose(10 * GIB, cards).uuid == OTHER


def test_free_memory_counts_and_not_the_total() -> None:
    assert choose(10 * GIB, [gpu(total_gib=24, used_gib=14)]).uuid is None


def test_a_card_that_others_use_is_taken_last() -> None:
    cards = [gpu(total_gib=16, used_gib=0), gpu(OTHER, total_gib=48, used_gib=0)]
    assert choose(GIB, cards, used_by_others=frozenset({CARD})).uuid == OTHER
    assert choose(GIB, cards[:1], used_by_others=frozenset({CARD})).uuid == CARD


def test_cards_that_are_lost_or_say_nothing_do_not_fit() -> None:
    chosen = choose(GIB, [gpu(lost=True), gpu(OTHER, used_gib=None)])
    assert chosen.uuid is None
    assert "is lost" in chosen.explanation() and "does not tell" in chosen.explanation()


def test_the_first_estimate_is_above_the_weights_and_a_raised_one_above_what_was_free() -> None:
    assert first_estimate_bytes(10 * GIB) == 14 * GIB
    assert raised_estimate_bytes(8 * GIB, 12 * GIB) == 15 * GIB
    assert raised_estimate_bytes(8 * GIB, None) == 10 * GIB


CARDS = st.lists(
    st.builds(
        gpu,
        st.sampled_from([CARD, OTHER, THIRD]),
        total_gib=st.floats(24, 48),
        used_gib=st.none() | st.floats(0, 24),
        lost=st.booleans(),
    ),
    max_size=3,
    unique_by=lambda each: each.uuid,
)


@given(st.integers(0, 48 * GIB), CARDS, st.frozensets(st.sampled_from([CARD, OTHER, THIRD])))
def test_the_chosen_card_has_room_and_every_card_has_its_word(
    needed_bytes: int, cards: list[GpuFacts], used: frozenset[str]
) -> None:
    chosen = choose(needed_bytes, cards, RESERVE_BYTES, used)
    fitting = {
        card.uuid
        for card in cards
        if not card.lost
        and card.memory_free_bytes is not None
        and card.memory_free_bytes >= needed_bytes + RESERVE_BYTES
    }
    assert (chosen.uuid is None) == (not fitting)
    assert chosen.uuid is None or chosen.uuid in fitting
    assert len(chosen.reasons) == len(cards)
    assert all(card.uuid in chosen.explanation() for card in cards)
    assert choose(needed_bytes, list(reversed(cards)), RESERVE_BYTES, used).uuid == chosen.uuid
