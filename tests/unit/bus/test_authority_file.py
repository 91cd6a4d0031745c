"""The file that holds the authority's secrets."""

import os
import stat
import threading
from pathlib import Path

import pytest

from panal.bus.authority_file import (
    authority_path,
    create_or_load_authority,
    load_authority,
    save_revocations,
)
from panal.bus.nkeys import KeyKind, SigningKey
from panal.core.clock import ManualClock
from panal.core.errors import SettingsError

KEY = SigningKey(KeyKind.USER, b"\x07" * 32).public
OTHER = SigningKey(KeyKind.USER, b"\x08" * 32).public


def test_it_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = authority_path(tmp_path)
    first = create_or_load_authority(path, ManualClock(), os.urandom)
    second = create_or_load_authority(path, ManualClock(), os.urandom)
    assert first.account == second.account
    assert first.operator_jwt() == second.operator_jwt()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_many_at_once_agree_on_one_authority(tmp_path: Path) -> None:
    path = authority_path(tmp_path)
    accounts: list[str] = []
    barrier = threading.Barrier(8)

    def make() -> None:
        barrier.wait()
        accounts.append(create_or_load_authority(path, ManualClock(), os.urandom).account)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(accounts) == 8
    assert len(set(accounts)) == 1


def test_revocations_of_two_programs_are_both_kept(tmp_path: Path) -> None:
    path = authority_path(tmp_path)
    clock = ManualClock()
    now = int(clock.utc_seconds())
    one = create_or_load_authority(path, clock, os.urandom)
    two = create_or_load_authority(path, clock, os.urandom)
    one.revoke(KEY, now)
    save_revocations(path, one)
    two.revoke(OTHER, now)
    save_revocations(path, two)
    assert two.revocations == {KEY: now, OTHER: now}
    assert load_authority(path, clock).revocations == {KEY: now, OTHER: now}


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"seeds": {"operator": "x"}}'])
def test_a_damaged_file_stops_the_start_and_is_named(tmp_path: Path, content: bytes) -> None:
    path = authority_path(tmp_path)
    create_or_load_authority(path, ManualClock(), os.urandom)
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"authority\.json"):
        create_or_load_authority(path, ManualClock(), os.urandom)
    assert path.read_bytes() == content


def test_a_damaged_seed_stops_the_start_and_is_not_shown(tmp_path: Path) -> None:
    path = authority_path(tmp_path)
    create_or_load_authority(path, ManualClock(), os.urandom)
    text = path.read_text()
    seed = text.split('"operator"')[1].split('"')[1]
    path.write_text(text.replace(seed, seed[:-1] + ("A" if seed[-1] != "A" else "B")))
    with pytest.raises(SettingsError) as caught:
        load_authority(path, ManualClock())
    assert seed[:20] not in caught.value.message
