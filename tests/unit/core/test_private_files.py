"""Private files: whole or not at all, for their owner only, and a sentence where that is impossible."""

import stat
import sys
from pathlib import Path

import pytest

from panal.core.errors import SettingsError
from panal.core.private_files import write_private, write_private_once


def test_writes_whole_and_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "secret"
    write_private(path, b"one")
    write_private(path, b"two")
    assert path.read_bytes() == b"two"
    assert [each.name for each in path.parent.iterdir()] == ["secret"]
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_once_means_the_first_stays(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_private_once(path, b"first")
    write_private_once(path, b"second")
    assert path.read_bytes() == b"first"
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize("write", [write_private, write_private_once])
def test_a_place_that_cannot_be_written_is_told_with_its_name(tmp_path: Path, write: object) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(SettingsError, match="file/secret cannot be written"):
        write(blocked / "secret", b"content")  # type: ignore[operator]
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
