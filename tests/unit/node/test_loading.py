"""When a start of an engine has taken too long."""

from hypothesis import given
from hypothesis import strategies as st

from panal.node.engines.loading import PROGRESS_BYTES, TIMES_MAX, Load

LIMIT_S = 10.0


def test_p19_a_start_that_stands_still_is_over_and_one_that_moves_is_not() -> None:
    still, telling, growing = (Load(LIMIT_S, 0.0) for _ in range(3))
    for second in range(1, 60):
        telling.told(second / 60, float(second))
        growing.holds(second * PROGRESS_BYTES, float(second))
        assert still.over(float(second)) is (second > LIMIT_S)
        assert not telling.over(float(second)) and not growing.over(float(second))


def test_p19_the_same_word_again_and_a_little_memory_are_no_progress() -> None:
    load = Load(LIMIT_S, 0.0)
    load.told(0.5, 1.0)
    load.holds(5 * PROGRESS_BYTES, 1.0)
    for second in range(2, 13):
        load.told(0.5, float(second))
        load.told(0.2, float(second))
        load.holds(5 * PROGRESS_BYTES + second, float(second))
    assert load.over(12.0)


@given(st.lists(st.floats(0.0, 1.0), max_size=50), st.lists(st.integers(0, 2**50), max_size=50))
def test_whatever_it_says_of_itself_a_start_has_an_end(shares: list[float], sizes: list[int]) -> None:
    load = Load(LIMIT_S, 0.0)
    ends_s = TIMES_MAX * LIMIT_S + 0.1
    for share in shares:
        load.told(share, ends_s)
    for size in sizes:
        load.holds(size, ends_s)
    assert load.over(ends_s)
