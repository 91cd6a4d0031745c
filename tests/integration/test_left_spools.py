"""Usage of processes that did not come back: drained by another, once, and only when it was left."""

import subprocess
import sys
from pathlib import Path

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import StoreError
from panal.store import Store
from panal.store.folder_lock import FolderLock
from panal.store.left_spools import LEFT_AFTER_S, LeftSpools
from panal.store.usage_spool import UsageSpool
from tests.support.databases import KINDS, fresh_store
from tests.support.rows import settlement_row

KILLED = """
import os, signal, sys
from pathlib import Path
from panal.store.usage_spool import UsageSpool
from tests.support.rows import settlement_row

spool = UsageSpool(Path(sys.argv[1]), segment_bytes=4096)
spool.open()
for number in range(int(sys.argv[2])):
    spool.append(settlement_row(number))
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_with(folder: Path, records: int) -> None:
    """A process that wrote so many records there and was killed."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(records)], check=False, timeout=60)
    assert done.returncode == -9


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path):
    async with fresh_store(request.param, tmp_path) as made:
        yield made


async def requests_in(store: Store) -> int:
    async with store.reading() as tx:
        return (await tx.usage.totals("tnt_default")).requests


async def test_what_a_killed_process_left_is_written_once(store: Store, tmp_path: Path) -> None:
    root, clock = tmp_path / "spool", ManualClock()
    killed_with(root / "2", 30)
    killed_with(root / "7", 30)  # the same records, as if half of them had been written before
    left = LeftSpools(root, root, clock)
    assert await left.drain(store) == 0
    clock.advance(LEFT_AFTER_S - 0.1)
    assert await left.drain(store) == 0
    clock.advance(0.1)
    drained = 0
    while found := await left.drain(store):
        drained += found
    assert drained == 60 and await requests_in(store) == 30
    assert not list(root.glob("**/*.jsonl"))


async def test_the_first_process_spool_is_found_by_the_others(store: Store, tmp_path: Path) -> None:
    root, clock = tmp_path / "spool", ManualClock()
    killed_with(root, 3)
    (root / "2").mkdir()
    left = LeftSpools(root, root / "2", clock)
    await left.drain(store)
    clock.advance(LEFT_AFTER_S)
    assert await left.drain(store) == 3


async def test_the_spool_of_a_living_process_is_never_touched(store: Store, tmp_path: Path) -> None:
    root, clock = tmp_path / "spool", ManualClock()
    living = UsageSpool(root / "2")
    living.open()
    living.append(settlement_row(1))
    left = LeftSpools(root, root, clock)
    for _ in range(3):
        assert await left.drain(store) == 0
        clock.advance(LEFT_AFTER_S)
    assert await living.drain(store) == 1
    living.close()


async def test_a_process_that_comes_back_in_time_drains_its_own(store: Store, tmp_path: Path) -> None:
    root, clock = tmp_path / "spool", ManualClock()
    killed_with(root / "2", 3)
    left = LeftSpools(root, root, clock)
    await left.drain(store)
    clock.advance(LEFT_AFTER_S)
    back = UsageSpool(root / "2")
    back.open()
    assert await left.drain(store) == 0
    assert await back.drain(store) == 3
    back.close()


async def test_while_the_store_is_away_everything_stays_and_the_lock_is_given_back(tmp_path: Path) -> None:
    class Away:
        async def add_usage(self, _records: object, _contributions: object) -> None:
            raise StoreError("away")

    root, clock = tmp_path / "spool", ManualClock()
    killed_with(root / "2", 3)
    left = LeftSpools(root, root, clock)
    await left.drain(Away())
    clock.advance(LEFT_AFTER_S)
    with pytest.raises(StoreError):
        await left.drain(Away())
    lock = FolderLock(root / "2")
    lock.take()
    lock.release()
    assert list((root / "2").glob("*.jsonl"))
