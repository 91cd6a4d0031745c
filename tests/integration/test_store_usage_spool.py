"""The usage spool: bounded, patient, exact under kill -9 between any two steps."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from panal.core.errors import BadRequest, SettingsError, StoreError
from panal.store import open_store
from panal.store.usage_spool import UsageSpool
from tests.support.databases import KINDS, fresh_store, fresh_url
from tests.support.rows import contribution_row, settlement_row, usage_row

CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from panal.store import open_store, usage_spool
from tests.support.rows import settlement_row

url, folder, step, first = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    store = await open_store(url)
    spool = usage_spool.UsageSpool(folder, segment_bytes=4096)
    spool.open()
    for number in range(first, first + 20):
        spool.append(settlement_row(number))
        print(number, flush=True)
        if step == "append" and number == first + 12:
            die()
    class Sink:
        async def add_usage(self, records, contributions):
            if step == "before write":
                die()
            await store.add_usage(records, contributions)
            if step == "after write":
                die()
    if step == "in write":
        from panal.store.contributions import Contributions
        Contributions.add = die
    if step == "after removal":
        whole = Path.unlink
        Path.unlink = lambda path: (whole(path), die())
    await spool.drain(Sink())

asyncio.run(main())
"""


class Away:
    """A store that is not there."""

    async def add_usage(self, records, contributions):
        raise StoreError("away")


class Collecting:
    def __init__(self) -> None:
        self.records = []
        self.batches = 0

    async def add_usage(self, records, contributions):
        self.records += records
        self.batches += 1


@pytest.fixture
def spool(tmp_path):
    spool = UsageSpool(tmp_path / "spool", segment_bytes=4096)
    spool.open()
    yield spool
    spool.close()


def _files(spool: UsageSpool) -> list[Path]:
    return spool._segments()


async def test_what_is_appended_is_drained_in_order_and_removed(spool):
    for number in range(50):
        spool.append(settlement_row(number))
    assert len(_files(spool)) > 3
    sink = Collecting()
    assert await spool.drain(sink) == 50
    assert sink.records == [usage_row(number) for number in range(50)]
    assert _files(spool) == []
    assert spool.waiting_bytes == 0
    assert await spool.drain(sink) == 0


async def test_appending_goes_on_while_draining(spool):
    class Appending(Collecting):
        async def add_usage(self, records, contributions):
            if self.batches < 3:
                spool.append(settlement_row(100 + self.batches))
            await super().add_usage(records, contributions)

    spool.append(settlement_row(1))
    sink = Appending()
    for _ in range(5):
        await spool.drain(sink)
    assert [record.request_id[-3:] for record in sink.records] == ["001", "100", "101", "102"]


async def test_two_drains_at_once_do_the_work_once(spool):
    for number in range(20):
        spool.append(settlement_row(number))
    sink = Collecting()
    assert sum(await asyncio.gather(spool.drain(sink), spool.drain(sink))) == 20
    assert spool.waiting_bytes == 0


def test_a_folder_that_cannot_be_made_stops_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be made"):
        UsageSpool(tmp_path / "file" / "spool").open()


async def test_everything_is_kept_while_the_store_is_away(spool):
    for number in range(30):
        spool.append(settlement_row(number))
        if number % 10 == 9:
            with pytest.raises(StoreError):
                await spool.drain(Away())
    sink = Collecting()
    await spool.drain(sink)
    assert len(sink.records) == 30


async def test_at_its_limit_it_refuses_and_says_so_and_takes_again_after_draining(tmp_path):
    spool = UsageSpool(tmp_path, bytes_max=5_000, segment_bytes=2_000)
    spool.open()
    kept = 0
    with pytest.raises(StoreError, match="limit"):
        for number in range(1_000):
            spool.append(settlement_row(number))
            kept += 1
    assert spool.full
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5_000 + 2_000
    sink = Collecting()
    await spool.drain(sink)
    assert len(sink.records) == kept
    assert not spool.full
    spool.append(settlement_row(1))
    spool.close()


async def test_a_restart_finds_what_was_left_and_counts_it(tmp_path):
    first = UsageSpool(tmp_path)
    first.open()
    first.append(settlement_row(1))
    first.close()
    second = UsageSpool(tmp_path)
    second.open()
    assert second.waiting_bytes > 0
    second.append(settlement_row(2))
    sink = Collecting()
    await second.drain(sink)
    assert sink.records == [usage_row(1), usage_row(2)]
    second.close()


def test_a_folder_has_one_process_at_a_time(spool, tmp_path):
    other = UsageSpool(tmp_path / "spool")
    with pytest.raises(SettingsError, match="Another program"):
        other.open()


async def test_a_torn_line_is_set_aside_and_the_others_arrive(spool, caplog):
    for number in range(3):
        spool.append(settlement_row(number))
    spool._close_segment()
    path = _files(spool)[0]
    path.write_bytes(path.read_bytes()[:-40])
    sink = Collecting()
    assert await spool.drain(sink) == 2
    assert path.with_suffix(".damaged").read_bytes().startswith(b'{"usage"')
    assert "set aside" in caplog.text
    assert _files(spool) == []


async def test_a_record_that_no_database_takes_does_not_hold_up_the_others(spool, caplog):
    class Choosy(Collecting):
        async def add_usage(self, records, contributions):
            if any(record.request_id.endswith("7") for record in records):
                raise BadRequest("no")
            await super().add_usage(records, contributions)

    for number in range(10):
        spool.append(settlement_row(number))
    sink = Choosy()
    await spool.drain(sink)
    assert len(sink.records) == 9
    assert "1 usage records" in caplog.text


async def test_a_full_disk_is_a_store_error_and_leaves_no_torn_line(spool, monkeypatch):
    spool.append(settlement_row(1))
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, data[:10]))
    with pytest.raises(StoreError, match="no room"):
        spool.append(settlement_row(2))
    monkeypatch.undo()
    spool.append(settlement_row(3))
    sink = Collecting()
    await spool.drain(sink)
    assert sink.records == [usage_row(1), usage_row(3)]


async def test_it_goes_on_draining_after_an_outage(spool):
    class Returning(Collecting):
        def __init__(self) -> None:
            super().__init__()
            self.tried = asyncio.Event()
            self.away = True
            self.done = asyncio.Event()

        async def add_usage(self, records, contributions):
            self.tried.set()
            if self.away:
                raise StoreError("away")
            await super().add_usage(records, contributions)
            self.done.set()

    spool.append(settlement_row(1))
    sink = Returning()
    running = asyncio.create_task(spool.run(sink))
    async with asyncio.timeout(30):
        await sink.tried.wait()
        sink.away = False
        await sink.done.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sink.records == [usage_row(1)]


@pytest.mark.parametrize("kind", KINDS)
async def test_kills_between_any_two_steps_lose_and_double_nothing(tmp_path, kind):
    steps = ["append", "before write", "in write", "after write", "after removal", "none"]
    async with fresh_url(kind, tmp_path) as url:
        folder = tmp_path / "spool"
        appended = []
        for place, step in enumerate(steps):
            child = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", CHILD, url, str(folder), step, str(place * 100)],
                check=False,
                capture_output=True,
                timeout=60,
                cwd=Path(__file__).parents[2],
            )
            assert child.returncode == (0 if step == "none" else -9), child.stderr.decode()
            appended += [int(line) for line in child.stdout.split()]
        store = await open_store(url)
        async with store.reading() as tx:
            rows = await tx.usage.list("tnt_default", limit=1000)
            made = [await tx.contributions.of_request(row.request_id) for row in rows]
        await store.close()
    assert len(appended) == 113
    assert rows == [usage_row(number) for number in sorted(appended, reverse=True)]
    assert made == [[contribution_row(number)] for number in sorted(appended, reverse=True)]


@pytest.mark.parametrize("kind", KINDS)
async def test_draining_the_same_segment_twice_writes_it_once(tmp_path, kind):
    async with fresh_store(kind, tmp_path) as store:
        spool = UsageSpool(tmp_path / "spool")
        spool.open()
        for number in range(5):
            spool.append(settlement_row(number))
        spool._close_segment()
        copy = _files(spool)[0].read_bytes()
        await spool.drain(store)
        (tmp_path / "spool" / "000000000009.jsonl").write_bytes(copy)
        await spool.drain(store)
        async with store.reading() as tx:
            assert (await tx.usage.totals("tnt_default")).requests == 5
        spool.close()
