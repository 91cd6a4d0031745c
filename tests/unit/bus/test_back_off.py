"""Pauses between tries: they grow, they end, and no two of many are the same."""

import random

from hypothesis import given
from hypothesis import strategies as st

from panal.bus.back_off import BACK_OFF_S_MAX, BACK_OFF_S_MIN, SPREAD_S, first_pause_s, pause_s

DRAWS = st.floats(0.0, 1.0, exclude_max=True)


@given(st.integers(0, 10_000), DRAWS)
def test_a_pause_is_bounded_and_never_nothing(failures: int, draw: float) -> None:
    assert BACK_OFF_S_MIN / 2 <= pause_s(failures, draw) < BACK_OFF_S_MAX


@given(st.integers(0, 100), DRAWS, DRAWS)
def test_it_grows_with_failures_and_with_the_draw(failures: int, one: float, two: float) -> None:
    low, high = sorted((one, two))
    assert pause_s(failures, low) <= pause_s(failures, high)
    assert pause_s(failures, low) <= pause_s(failures + 1, low)
    assert 0.0 <= first_pause_s(low) <= first_pause_s(high) < SPREAD_S


def test_a_thousand_nodes_that_lost_their_bus_together_come_back_apart() -> None:
    """No tenth of the first half second gets much more than its share, nor any tenth of later rounds."""
    for pause, longest_s, parts in (
        (first_pause_s, SPREAD_S, range(10)),
        (lambda draw: pause_s(20, draw), BACK_OFF_S_MAX, range(5, 10)),
    ):
        chance = random.Random(1)
        pauses = [pause(chance.random()) for _ in range(1000)]
        crowds = [sum(int(10 * each / longest_s) == part for each in pauses) for part in parts]
        assert sum(crowds) == 1000
        assert max(crowds) < 1.5 * 1000 / len(parts)
