"""The owner's files: a pause that survives, a status that is fresh, and doubt that means pause."""

import json
from pathlib import Path

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import BadRequest
from panal.node.desk import STATUS_FRESH_S, Desk


def test_a_pause_holds_until_it_is_taken_back(tmp_path: Path) -> None:
    clock = ManualClock()
    desk = Desk(tmp_path / "home", clock)
    assert desk.paused_until_utc_s() is None
    desk.pause()
    assert desk.paused_until_utc_s() == float("inf")
    assert Desk(tmp_path / "home", clock).paused_until_utc_s() == float("inf"), "it survives a restart"
    assert desk.resume()
    assert not desk.resume()
    assert desk.paused_until_utc_s() is None


def test_a_pause_with_an_end_ends(tmp_path: Path) -> None:
    clock = ManualClock()
    desk = Desk(tmp_path, clock)
    desk.pause(60)
    assert desk.paused_until_utc_s() == clock.utc_seconds() + 60
    clock.advance(60)
    assert desk.paused_until_utc_s() is None


def test_a_second_pause_replaces_the_first(tmp_path: Path) -> None:
    clock = ManualClock()
    owner, agent = Desk(tmp_path, clock), Desk(tmp_path, clock)
    owner.pause(60)
    assert agent.paused_until_utc_s() == clock.utc_seconds() + 60
    owner.pause()
    assert agent.paused_until_utc_s() == float("inf")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e9])
def test_odd_times_are_refused(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(BadRequest):
        Desk(tmp_path, ManualClock()).pause(seconds)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"until_utc_s": "tomorrow"}', "x" * 100_000])
def test_a_pause_that_is_not_understood_is_a_pause(tmp_path: Path, text: str) -> None:
    desk = Desk(tmp_path, ManualClock())
    (tmp_path / "desk").mkdir()
    (tmp_path / "desk" / "pause.json").write_text(text)
    assert desk.paused_until_utc_s() == float("inf")
    assert desk.problem
    desk.pause(5)
    assert desk.paused_until_utc_s() != float("inf")
    assert desk.problem == ""


def test_unknown_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    desk = Desk(tmp_path, ManualClock())
    desk.pause()
    file = tmp_path / "desk" / "pause.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "why": "meeting"}))
    assert desk.paused_until_utc_s() == float("inf")
    assert desk.problem == ""


def test_the_status_tells_its_age(tmp_path: Path) -> None:
    clock = ManualClock()
    desk = Desk(tmp_path, clock)
    assert desk.status().status is None
    desk.pause(60)
    desk.write_status("owner", "paused by its owner", "", 0)
    seen = desk.status()
    assert seen.fresh
    assert seen.status is not None
    assert seen.status.paused
    assert seen.status.paused_until_utc_s == clock.utc_seconds() + 60
    clock.advance(STATUS_FRESH_S + 1)
    assert not desk.status().fresh


def test_files_are_the_owners_alone_and_nothing_is_left_over(tmp_path: Path) -> None:
    desk = Desk(tmp_path, ManualClock())
    desk.pause()
    for _ in range(3):
        desk.write_status("owner", "", "", 0)
    names = sorted(path.name for path in (tmp_path / "desk").iterdir())
    assert names == ["pause.json", "status.json"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "desk").iterdir())
    assert (tmp_path / "desk").stat().st_mode & 0o077 == 0
