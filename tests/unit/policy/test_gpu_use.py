"""Is somebody else on the GPU: each clause of the rule, what is unknown, what is learnt, what is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.gpus import GIB, ForeignUse, GpuProcess, GpuReading, Thermal
from panal.policy.gpu_use import (
    BASELINE_ASSUMED_BYTES,
    BASELINE_BYTES_MAX,
    HOT_S,
    LATE_S_MAX,
    MEMORY_SLACK_BYTES,
    STALE_S,
    Watched,
    answer,
    learnt,
    watch,
)
from tests.support.gpus import CARD, OTHER, gpu, reading

OWN = 50
THEIRS = 60


def process(pid: int, held_gib: float | None = 0.1, **more: object) -> GpuProcess:
    held = None if held_gib is None else int(held_gib * GIB)
    facts = {"computes": True, "memory_bytes": held, "busy_share": 0.0}
    return GpuProcess(pid=pid, **(facts | more))  # type: ignore[arg-type]


def after(*readings: GpuReading, learn: bool = False, begin: Watched | None = None) -> Watched:
    watched = begin or Watched()
    for each in readings:
        watched = watch(watched, each, may_learn=learn)
    return watched


def foreign(*readings: GpuReading, learn: bool = False) -> ForeignUse:
    return after(*readings, learn=learn).foreign


def test_a_quiet_gpu_is_nobody_s() -> None:
    assert foreign(reading(gpu())) is ForeignUse.NO


def test_a_machine_without_gpus_is_nobody_s_and_cool() -> None:
    told = answer(after(reading(no_driver=True)), 0.0)
    assert (told.foreign, told.thermal, told.lost) == (ForeignUse.NO, Thermal.OK, ())


def test_a_compute_context_of_others_is_foreign_use_at_once() -> None:
    assert foreign(reading(gpu(processes=(process(THEIRS),)))) is ForeignUse.YES


def test_our_own_engine_is_not_foreign() -> None:
    facts = gpu(used_gib=20, processes=(process(OWN, 19.5, busy_share=1.0),), busy_share=1.0)
    assert foreign(*(reading(facts, at_s=at_s, own=frozenset({OWN})) for at_s in range(4))) is ForeignUse.NO


def test_a_program_that_draws_and_computes_counts_as_drawing() -> None:
    """Browsers and desktops do both, on Windows nearly all of them."""
    assert foreign(reading(gpu(processes=(process(THEIRS, draws=True),)))) is ForeignUse.NO


@pytest.mark.parametrize(("share", "verdict"), [(0.10, ForeignUse.NO), (0.11, ForeignUse.YES)])
def test_drawing_above_a_tenth_in_two_samples_is_foreign_use(share: float, verdict: ForeignUse) -> None:
    facts = gpu(processes=(process(THEIRS, computes=False, draws=True, busy_share=share),), busy_share=share)
    one, two = (reading(facts, at_s=at_s, own=frozenset({OWN})) for at_s in (0.0, 1.0))
    assert foreign(one) is ForeignUse.NO
    assert foreign(one, two) is verdict


def test_busy_samples_that_follow_too_fast_or_are_interrupted_are_none() -> None:
    busy = gpu(processes=(process(THEIRS, computes=False, draws=True, busy_share=0.9),))
    own = frozenset({OWN})
    assert foreign(*(reading(busy, at_s=at_s, own=own) for at_s in (0.0, 0.5))) is ForeignUse.NO
    calm = gpu(processes=(process(THEIRS, computes=False, draws=True),))
    steps = [
        reading(busy, at_s=0.0, own=own),
        reading(calm, at_s=0.6, own=own),
        reading(busy, at_s=1.2, own=own),
    ]
    assert foreign(*steps) is ForeignUse.NO


def test_several_programs_that_draw_a_little_are_taken_together() -> None:
    drawing = tuple(process(pid, computes=False, draws=True, busy_share=0.06) for pid in (60, 61))
    readings = [reading(gpu(processes=drawing), at_s=at_s, own=frozenset({OWN})) for at_s in (0.0, 1.0)]
    assert foreign(*readings) is ForeignUse.YES


def test_memory_beyond_the_assumed_desktop_is_foreign_use() -> None:
    limit_gib = (BASELINE_ASSUMED_BYTES + MEMORY_SLACK_BYTES) / GIB
    assert foreign(reading(gpu(used_gib=limit_gib))) is ForeignUse.NO
    assert foreign(reading(gpu(used_gib=limit_gib + 0.1))) is ForeignUse.YES


def test_a_learnt_desktop_makes_the_rule_sharper() -> None:
    quiet = [reading(gpu(used_gib=0.4), at_s=float(at_s)) for at_s in range(3)]
    more = reading(gpu(used_gib=1.5), at_s=3.0)
    assert after(more, begin=after(*quiet)).foreign is ForeignUse.NO
    assert after(more, begin=after(*quiet, learn=True)).foreign is ForeignUse.YES


def test_our_own_memory_is_taken_off_before_the_comparison() -> None:
    facts = gpu(used_gib=20.0, processes=(process(OWN, 19.0),))
    assert foreign(reading(facts, own=frozenset({OWN}))) is ForeignUse.NO
    assert foreign(reading(facts, own=frozenset({OWN + 1}))) is ForeignUse.YES


def test_memory_that_windows_does_not_tell_by_process_is_unknown_while_our_engine_runs() -> None:
    facts = gpu(used_gib=9.0, processes=(process(OWN, None, draws=True),))
    assert foreign(reading(facts, own=frozenset({OWN}))) is ForeignUse.UNKNOWN


def test_without_an_engine_of_ours_the_total_is_enough() -> None:
    told = gpu(used_gib=0.4, processes=(process(THEIRS, None, draws=True),))
    assert foreign(reading(told)) is ForeignUse.NO
    assert foreign(reading(gpu(used_gib=9.0, processes=None))) is ForeignUse.YES
    assert foreign(reading(gpu(used_gib=0.4, processes=None))) is ForeignUse.NO


@pytest.mark.parametrize(
    "facts",
    [
        gpu(used_gib=None),
        gpu(busy_share=None),
        gpu(problem="the driver does not tell its memory", used_gib=None),
    ],
)
def test_what_is_not_told_is_unknown_and_never_nobody_s(facts: object) -> None:
    assert foreign(reading(facts)) is ForeignUse.UNKNOWN  # type: ignore[arg-type]


def test_what_the_driver_told_too_long_ago_is_unknown() -> None:
    watched = after(reading(gpu(), at_s=0.0))
    assert answer(watched, STALE_S).foreign is ForeignUse.NO
    assert answer(watched, STALE_S + 0.1).foreign is ForeignUse.UNKNOWN
    assert answer(Watched(), 0.0).foreign is ForeignUse.UNKNOWN


def test_a_gpu_that_fails_or_vanishes_is_lost_at_once_and_comes_back() -> None:
    begin = after(reading(gpu(), gpu(OTHER), at_s=0.0))
    for broken in (
        reading(gpu(OTHER), at_s=1.0),
        reading(gpu(lost=True), gpu(OTHER), at_s=1.0),
    ):
        watched = after(broken, begin=begin)
        assert watched.lost == (CARD,)
        assert watched.foreign is ForeignUse.UNKNOWN
        assert after(reading(gpu(), gpu(OTHER), at_s=2.0), begin=watched).lost == ()
    failed = after(reading(at_s=1.0, problem="NVML fails: Unknown Error"), begin=begin)
    assert failed.lost == (CARD, OTHER)


def test_another_index_is_the_same_gpu() -> None:
    begin = after(reading(gpu(index=0), gpu(OTHER, index=1), at_s=0.0))
    assert after(reading(gpu(OTHER, index=0), gpu(index=1), at_s=1.0), begin=begin).lost == ()


def test_a_driver_that_hangs_is_unknown_at_once_and_lost_after_a_while() -> None:
    begin = after(reading(gpu(), at_s=0.0))
    late = after(reading(at_s=2.0, problem="late", late=True), begin=begin)
    assert (late.lost, late.foreign) == ((), ForeignUse.UNKNOWN)
    assert after(reading(at_s=LATE_S_MAX, problem="late", late=True), begin=late).lost == (CARD,)


def test_heat_counts_when_the_hardware_slows_down_for_a_while() -> None:
    hot = gpu(throttle=frozenset({"hw_thermal"}))
    begin = after(reading(hot, at_s=0.0))
    assert begin.thermal is Thermal.OK
    assert after(reading(hot, at_s=HOT_S), begin=begin).thermal is Thermal.HOT
    cooled = after(reading(gpu(), at_s=HOT_S - 1), begin=begin)
    assert after(reading(hot, at_s=HOT_S), begin=cooled).thermal is Thermal.OK
    assert after(reading(gpu(throttle=frozenset({"sw_thermal", "power_cap"})))).thermal is Thermal.OK
    assert after(reading(gpu(throttle=None))).thermal is Thermal.UNKNOWN


# --- properties -----------------------------------------------------------------------------------------

SIZES = st.integers(0, 48 * GIB)


@given(st.lists(SIZES | st.none(), min_size=1, max_size=50))
def test_the_baseline_stays_below_its_limit_and_at_most_at_what_was_seen(sizes: list[int | None]) -> None:
    baseline: int | None = None
    for size in sizes:
        before = baseline
        baseline = learnt(baseline, size)
        if size is not None:
            assert baseline is not None and 0 <= baseline <= BASELINE_BYTES_MAX
            assert baseline <= max(size, before or 0)
            if size < (before or 0):
                assert baseline == size
        else:
            assert baseline == before


PROCESSES = st.builds(
    GpuProcess,
    pid=st.integers(1, 6),
    computes=st.booleans(),
    draws=st.booleans(),
    memory_bytes=st.none() | SIZES,
    busy_share=st.none() | st.floats(0, 1),
)
GPUS = st.builds(
    gpu,
    st.sampled_from([CARD, OTHER]),
    used_gib=st.none() | st.floats(0, 24),
    processes=st.none() | st.lists(PROCESSES, max_size=3, unique_by=lambda each: each.pid).map(tuple),
    busy_share=st.none() | st.floats(0, 1),
    lost=st.booleans(),
    throttle=st.none() | st.frozensets(st.sampled_from(["hw_thermal", "power_cap"])),
)
READINGS = st.builds(
    lambda found, problem, late, own: reading(*found, problem=problem, late=late, own=own),
    st.lists(GPUS, max_size=2, unique_by=lambda each: each.uuid),
    st.sampled_from(["", "", "", "failed"]),
    st.booleans(),
    st.frozensets(st.integers(1, 6), max_size=2),
)


@given(st.lists(READINGS, max_size=12), st.booleans())
def test_whatever_a_driver_tells_there_is_an_answer(readings: list[GpuReading], learn: bool) -> None:
    watched = Watched()
    for second, each in enumerate(readings):
        each = reading(*each.gpus, at_s=float(second), own=each.own, problem=each.problem, late=each.late)
        watched = watch(watched, each, may_learn=learn)
        told = answer(watched, float(second))
        if each.problem:
            assert told.foreign is ForeignUse.UNKNOWN
        elif any(
            process.computes and not process.draws and process.pid not in each.own
            for facts in each.gpus
            if not facts.lost
            for process in facts.processes or ()
        ):
            assert told.foreign is ForeignUse.YES
        if told.lost:
            assert told.foreign is not ForeignUse.NO
        assert set(told.lost) <= {CARD, OTHER}


@given(st.floats(0, 24), st.booleans())
def test_more_memory_of_others_never_makes_a_gpu_free(used_gib: float, learn: bool) -> None:
    begin = after(reading(gpu(used_gib=0.3)), learn=learn)
    less, more = (
        after(reading(gpu(used_gib=used), at_s=1.0), begin=begin) for used in (used_gib / 2, used_gib)
    )
    assert not (less.foreign is ForeignUse.YES and more.foreign is ForeignUse.NO)
