"""What a sensor's readings are worth."""

from hypothesis import given
from hypothesis import strategies as st

from panal.policy.owner_values import Reading
from panal.policy.sight import DOUBT_S, Sight, see


def read(sight: Sight | None, *readings: tuple[float, float | None]) -> Sight:
    for now_s, idle_s in readings:
        sight = see(sight, Reading(now_s, idle_s, "broken" if idle_s is None else ""))
    assert sight is not None
    return sight


def test_growing_idle_time_is_no_input() -> None:
    sight = read(None, (100.0, 3600.0), (100.25, 3600.25), (101.0, 3601.0))
    assert sight.input_s == -3500.0
    assert sight.problem == ""


def test_a_fall_to_nearly_nothing_is_input() -> None:
    sight = read(None, (100.0, 3600.0), (100.25, 0.1))
    assert abs(sight.input_s - 100.15) < 1e-9
    assert sight.problem == ""


def test_typing_on_and_on_moves_the_last_input_along() -> None:
    sight = read(None, *((100.0 + step / 4, 0.01 + step % 3 / 50) for step in range(100)))
    assert 124.75 - sight.input_s < 0.2


def test_an_hour_that_stands_still_is_not_believed_and_stays_so() -> None:
    sight = read(None, *((100.0 + step / 4, 3600.0) for step in range(100)))
    assert "implausible" in sight.problem
    assert sight.read_s - sight.input_s < DOUBT_S
    later = read(sight, *((130.0 + step / 4, 3600.0) for step in range(1000)))
    assert "implausible" in later.problem


def test_a_jump_ahead_a_small_fall_and_nonsense_are_input_now() -> None:
    for idle_s in (3600.0, 40.0, -1.0, float("nan"), float("inf"), None):
        sight = read(None, (100.0, 60.0), (100.25, 60.25), (100.5, idle_s))
        assert sight.input_s == 100.5
        assert sight.problem


def test_a_sensor_that_comes_back_starts_from_the_moment_it_was_unknown() -> None:
    sight = read(None, (100.0, 3600.0), (100.25, None), (100.5, 3600.5))
    assert sight.input_s == 100.25
    assert sight.problem == ""
    sight = read(sight, (100.75, 3600.75), (101.0, 0.0))
    assert sight.input_s == 101.0


def test_an_implausible_sensor_is_believed_again_after_a_while() -> None:
    sight = read(None, (100.0, 60.0), (100.25, -5.0), (100.5, 60.5))
    assert sight.problem
    sight = read(sight, *((101.0 + step, 61.0 + step) for step in range(int(DOUBT_S) + 1)))
    assert sight.problem == ""
    assert sight.input_s == 100.25


def test_a_slow_drift_of_the_clocks_is_forgiven() -> None:
    sight = read(None, *((float(step), step * 1.00005) for step in range(0, 20_000, 10)))
    assert sight.problem == ""
    assert sight.input_s == 0.0


@given(st.lists(st.tuples(st.floats(0.01, 30), st.one_of(st.none(), st.floats())), min_size=1, max_size=40))
def test_the_last_believed_input_never_goes_back(steps: list[tuple[float, float | None]]) -> None:
    now_s, sight = 1000.0, None
    for gap_s, idle_s in steps:
        now_s += gap_s
        after = see(sight, Reading(now_s, idle_s))
        if sight is not None:
            assert after.input_s >= sight.input_s
        assert after.input_s <= now_s
        sight = after


@given(st.lists(st.booleans(), min_size=2, max_size=200))
def test_a_true_sensor_is_always_believed(touches: list[bool]) -> None:
    """Simulated truth: whoever touches is seen within one poll, who does not is never invented."""
    touched_s, sight = 0.0, read(None, (100.0, 100.0))
    for step, touch in enumerate(touches, start=1):
        now_s = 100.0 + step / 4
        if touch:
            touched_s = now_s - 0.1
        sight = see(sight, Reading(now_s, now_s - touched_s))
        assert sight.problem == ""
        assert abs(sight.input_s - touched_s) < 1e-6
