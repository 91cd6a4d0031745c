"""Several processes' metrics as one: sums that never go back, gauges of the living, nothing twice."""

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from panal.core.errors import SettingsError
from panal.telemetry import exchange
from panal.telemetry.exchange import MetricsExchange, Snapshot, forget_counts, mark_of, snapshots_in
from panal.telemetry.metrics import GatewayMetrics
from panal.telemetry.sums import Collected, Family, Part, Series, added_up, counted
from panal.telemetry.tallies import Counts, Reading, SecondsHistogram, States


class Process:
    """One metric of each kind, and the exchange."""

    def __init__(self, folder: Path, number: int, gateway: str = "") -> None:
        self.counter = Counts("panal_asked", "Asked.", ("model",), lambda: 50.0)
        self.histogram = SecondsHistogram("panal_took_seconds", "Took.", ("model",), (0.1, 1.0))
        self.open = 0.0
        gauge = Reading("panal_open", "Open.", lambda: self.open)

        def families() -> list[Family]:
            return [self.counter.family(), self.histogram.family(), gauge.family()]

        self.exchange = MetricsExchange(families, folder, number, gateway or f"gw_{number}", 100.0)
        self.exchange.open()

    async def value(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", (await self.exchange.text()).decode(), re.MULTILINE)
        assert found is not None, name
        return float(found[1])


ASKED = 'panal_asked_total{model="a"}'


def ended(path: Path) -> None:
    """Make a snapshot look as that of a process that was killed."""
    snapshot = msgspec.json.decode(path.read_bytes(), type=Snapshot)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(snapshot, pid=gone.pid, mark="1")))


async def test_any_process_shows_what_all_have_counted(tmp_path: Path) -> None:
    first, second = Process(tmp_path, 1), Process(tmp_path, 2)
    for process, count in ((first, 3), (second, 4)):
        process.counter.labels("a").inc(count)
        process.histogram.child("a").observe_several(0.05, count)
        process.open = count
        await process.exchange.publish()
    for process in (first, second):
        assert await process.value(ASKED) == 7
        assert await process.value('panal_took_seconds_bucket{le="0.1",model="a"}') == 7
        assert await process.value('panal_took_seconds_count{model="a"}') == 7


async def test_gauges_are_those_of_the_living_and_counters_also_those_of_the_ended(tmp_path: Path) -> None:
    first, second = Process(tmp_path, 1), Process(tmp_path, 2)
    second.counter.labels("a").inc(4)
    second.open = 9
    await second.exchange.publish()
    first.open = 1
    ended(tmp_path / "2.json")
    assert await first.value("panal_open") == 1
    assert await first.value(ASKED) == 4
    assert [each.lives for each in snapshots_in(tmp_path)] == [True, False]


async def test_a_process_that_is_started_again_goes_on_from_what_was_counted_in_its_place(
    tmp_path: Path,
) -> None:
    other = Process(tmp_path, 1)
    for life in range(1, 4):
        process = Process(tmp_path, 2, f"gw_{life}")
        process.counter.labels("a").inc(5)
        process.open = 2
        await process.exchange.publish()
        assert await other.value(ASKED) == 5 * life
        ended(tmp_path / "2.json")
        assert await other.value(ASKED) == 5 * life
        assert await other.value("panal_open") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.json", "2.json"]


async def test_no_later_scrape_of_any_process_shows_less_than_an_earlier_one(tmp_path: Path) -> None:
    """Without a pause between: what one has shown it has written before."""
    both = Process(tmp_path, 1), Process(tmp_path, 2)
    seen = 0.0
    for turn in range(20):
        both[turn % 2].counter.labels("a").inc()
        asked = both[turn % 3 % 2]
        shown = await asked.value(ASKED) if turn else 0.0
        assert shown >= seen
        seen = shown


async def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    process = Process(tmp_path, 1)
    await process.exchange.publish()
    (tmp_path / "1.json").unlink()
    await process.exchange.publish()
    assert not (tmp_path / "1.json").exists()
    process.open = 1
    await process.exchange.publish()
    assert (tmp_path / "1.json").exists()


async def test_a_disk_that_refuses_costs_no_scrape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(tmp_path, 1)

    def refuse(*_: object) -> None:
        raise SettingsError("the disk is full")

    monkeypatch.setattr(exchange, "_write", refuse)
    process.counter.labels("a").inc()
    assert await process.value(ASKED) == 1


async def test_damaged_and_foreign_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "2.json").write_bytes(b"{")
    (tmp_path / "notes.txt").write_bytes(b"")
    process = Process(tmp_path, 1)
    process.counter.labels("a").inc()
    assert await process.value(ASKED) == 1


def test_counting_begins_anew_with_all_processes(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_bytes(b"{}")
    forget_counts(tmp_path)
    forget_counts(tmp_path / "not there")
    assert list(tmp_path.iterdir()) == []


def test_a_mark_tells_a_process_from_a_later_one() -> None:
    assert mark_of(os.getpid()) == mark_of(os.getpid()) != ""
    assert mark_of(2**22 + 1) == ""


def test_one_process_shows_exactly_what_its_registry_does() -> None:
    registry = CollectorRegistry()
    metrics = GatewayMetrics(registry, in_flight=lambda: 2, queued=lambda: 1, streams=lambda: 0)
    metrics.models_known(["a", 'b"\\\n'])
    for model in ("a", 'b"\\\n'):
        of = metrics.of("chat", model)
        of.ended("ok")
        of.total.observe(0.3)
    metrics.attempts["ok"].inc()
    families = added_up([Part(metrics.families(), lives=True)])
    assert generate_latest(Collected(families)) == generate_latest(registry)


VALUES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100)), max_size=5)
PARTS = st.lists(st.tuples(VALUES, st.booleans()), max_size=6)


def part_of(values: list[tuple[str, int]], lives: bool) -> Part:
    series = [Series((label,), [float(value)], 1.0) for label, value in dict(values).items()]
    buckets = [Series((label,), [0.5, float(value), 1.0]) for label, value in dict(values).items()]
    return Part(
        [
            Family("n", "counter", "N.", ("l",), series),
            Family("h", "histogram", "H.", ("l",), buckets, (0.1,)),
            Family("g", "gauge", "G.", (), [Series((), [float(len(values))])]),
        ],
        lives,
    )


def flat(families: list[Family]) -> set[tuple[str, tuple[str, ...], tuple[float, ...]]]:
    return {
        (family.name, series.labels, tuple(series.numbers)) for family in families for series in family.series
    }


@given(PARTS)
def test_sums_are_the_same_in_any_order_and_any_grouping(
    parts: list[tuple[list[tuple[str, int]], bool]],
) -> None:
    made = [part_of(values, lives) for values, lives in parts]
    whole = flat(added_up(made))
    assert flat(added_up(reversed(made))) == whole
    wanted = sum(value for values, _lives in parts for value in dict(values).values())
    assert sum(numbers[0] for name, _labels, numbers in whole if name == "n") == wanted
    assert sum(numbers[1] for name, _labels, numbers in whole if name == "h") == wanted
    living = sum(len(values) for values, lives in parts if lives)
    assert sum(numbers[0] for name, _labels, numbers in whole if name == "g") == living
    halves = [Part(counted(added_up(half)), lives=False) for half in (made[:3], made[3:])]
    assert flat(added_up(halves)) == {each for each in whole if each[0] != "g"}


def test_counting_began_when_the_first_began() -> None:
    def part(value: float) -> Part:
        return Part([Family("n", "counter", "N.", (), [Series((), [1.0], value)])], lives=True)

    [family] = added_up([part(7.0), part(5.0), part(9.0)])
    assert family.series == [Series((), [3.0], 5.0)]


def test_what_was_given_is_not_changed() -> None:
    part = part_of([("a", 1)], lives=True)
    added_up([part, part])
    assert part == part_of([("a", 1)], lives=True)


def test_what_all_processes_see_is_shown_once_and_ends_with_them() -> None:
    missing = {"missing": 1.0}
    seen = States("panal_nodes", "Nodes.", ("ready", "missing"), lambda: missing)
    first = seen.family()
    missing["missing"] = 2.0
    second = seen.family()
    [together] = added_up([Part([first], lives=True), Part([second], lives=True)])
    assert {series.labels[0]: series.numbers for series in together.series} == {
        "ready": [0.0],
        "missing": [2.0],
    }
    [left] = added_up([Part([first], lives=True), Part([second], lives=False)])
    assert [series.numbers for series in left.series] == [[0.0], [1.0]]
    assert counted([first]) == []
