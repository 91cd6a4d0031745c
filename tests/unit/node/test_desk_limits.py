"""The owner's limits and hours: kept, joined with the operators' and only ever stricter."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.errors import BadRequest
from panal.core.settings import OwnerSettings
from panal.node.desk_limits import DeskLimits, LimitsFile, operators_limits
from panal.policy.desk_limits import Limits, allowed_now, joined
from panal.policy.hours import WEEK_MIN, Hours, hours_fault

DAY = 24 * 60


@pytest.mark.parametrize(
    ("text", "allowed", "refused"),
    [
        ("", [0, 5000, WEEK_MIN - 1], []),
        ("mo-fr 18:00-08:00", [18 * 60, DAY - 1, DAY + 60, 5 * DAY + 479], [480, 17 * 60, 5 * DAY + 480, 10]),
        ("18:00-08:00", [10, 18 * 60, 6 * DAY + 18 * 60], [480, DAY + 700]),
        ("sa-su 00:00-24:00", [5 * DAY, WEEK_MIN - 1], [0, 5 * DAY - 1]),
        ("su 22:00-06:00", [6 * DAY + 22 * 60, 5], [6 * 60, 6 * DAY]),
        ("fr-mo 10:00-11:00", [4 * DAY + 600, 6 * DAY + 600, 600], [DAY + 600]),
        ("mo 08:00-09:00, tu 10:00-11:00", [480, DAY + 600], [DAY + 480]),
    ],
)
def test_hours_allow_what_they_say(text: str, allowed: list[int], refused: list[int]) -> None:
    hours = Hours(text)
    assert [minute for minute in allowed if not hours.allow(minute)] == []
    assert [minute for minute in refused if hours.allow(minute)] == []


@pytest.mark.parametrize(
    "text", ["now", "mo-xx 10:00-11:00", "25:00-26:00", "10:60-11:00", "mo 10-11", "10:00-24:01"]
)
def test_hours_that_are_none_are_told(text: str) -> None:
    assert hours_fault(text)
    with pytest.raises(ValueError, match=r"\w"):
        Hours(text)


CAPS = st.none() | st.integers(0, 1000)
TEXTS = st.sampled_from(["", "mo-fr 18:00-08:00", "sa-su 00:00-24:00", "10:00-12:00"])
LIMITS = st.builds(
    Limits,
    memory_bytes_max=CAPS,
    gpu_memory_bytes_max=CAPS,
    power_w_max=CAPS,
    hours=st.lists(TEXTS, max_size=2).map(tuple),
    programs=st.frozensets(st.sampled_from("abc")),
    closed=st.booleans(),
)


@given(LIMITS, LIMITS, st.integers(0, WEEK_MIN - 1))
def test_neither_the_owner_nor_the_operators_can_loosen_the_other_s_word(
    operators: Limits, owner: Limits, minute: int
) -> None:
    both = joined(operators, owner)
    for one in (operators, owner):
        for name in ("memory_bytes_max", "gpu_memory_bytes_max", "power_w_max"):
            cap, now = getattr(one, name), getattr(both, name)
            assert cap is None or (now is not None and now <= cap)
        assert one.programs <= both.programs
        assert both.closed or not one.closed
        if allowed_now([Hours(text) for text in both.hours], minute):
            assert allowed_now([Hours(text) for text in one.hours], minute)


def test_limits_survive_a_restart_and_are_the_owner_s_alone(tmp_path: Path) -> None:
    limits = LimitsFile(
        memory_bytes_max=2**30, power_w_max=150.0, hours="mo-fr 18:00-08:00", programs=["Game"]
    )
    DeskLimits(tmp_path).write(limits)
    again = DeskLimits(tmp_path)
    assert again.owner() == limits
    assert again.read() == Limits(2**30, None, 150.0, ("mo-fr 18:00-08:00",), frozenset({"game"}))
    file = tmp_path / "desk" / "limits.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.unlink()
    assert again.read() == Limits()


def test_operators_say_zero_for_no_cap() -> None:
    assert operators_limits(OwnerSettings()) == Limits()
    set_up = operators_limits(OwnerSettings(memory_bytes_max=5, hours="10:00-11:00", programs=("CAD",)))
    assert (set_up.memory_bytes_max, set_up.hours, set_up.programs) == (
        5,
        ("10:00-11:00",),
        frozenset({"cad"}),
    )


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"hours": "never"}', b'{"memory_bytes_max": -1}', b" " * 70_000]
)
def test_a_file_that_cannot_be_understood_allows_no_work(tmp_path: Path, data: bytes) -> None:
    desk = DeskLimits(tmp_path)
    desk.write(LimitsFile(power_w_max=100.0))
    assert not desk.read().closed
    (tmp_path / "desk" / "limits.json").write_bytes(data)
    assert desk.read().closed
    assert desk.problem
    with pytest.raises(BadRequest):
        desk.owner()
    desk.write(LimitsFile())
    assert desk.read() == Limits()


@pytest.mark.parametrize(
    "limits",
    [LimitsFile(hours="never"), LimitsFile(memory_bytes_max=-1), LimitsFile(programs=[""]),
     LimitsFile(programs=["x"] * 201), LimitsFile(power_w_max=float("nan"))],
)  # fmt: skip
def test_what_is_no_limit_is_not_kept(tmp_path: Path, limits: LimitsFile) -> None:
    with pytest.raises(BadRequest):
        DeskLimits(tmp_path).write(limits)
    assert not (tmp_path / "desk").exists()
