"""The slice: an answer goes on when the desk's owner comes back, unseen by the official client.

A gateway and two desks on hosts of their own; the desks can only dial out. Each fault hits the desk that
is answering, in the middle of its answer.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.desks import Desk, Office, office
from tests.support.installation import short_folder, until

ENGINES = [
    pytest.param("echo", id="echo"),
    pytest.param("embedded", id="real", marks=pytest.mark.model),
]

LETTERS = "Bees 🐝 fließen, cafe\u0301, عربى, 漢字 👩‍👩‍👧; "
"""Characters of two to four bytes, combined and right to left: every cut falls near one."""

ECHO_REQUEST: dict[str, Any] = {
    "model": "echo",
    "messages": [{"role": "user", "content": LETTERS * 9}],
    "extra_body": {"x_echo": {"delay_token_s": 0.01}},
}
REAL_REQUEST: dict[str, Any] = {
    "model": "smollm2-135m",
    "messages": [{"role": "user", "content": "Write a long story about bees and their honeycomb."}],
    "max_tokens": 220,
    "temperature": 0.0,
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "embedded":
        _need_model()
    return str(request.param)


def _need_model() -> None:
    import os

    from panal.node.weights import SMOLLM2_135M, ModelCache, cache_folder

    if ModelCache(cache_folder(os.environ)).find(SMOLLM2_135M) is None:
        pytest.skip("the small model is not in the cache: panal models fetch")


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.fixture
def place(folder: Path, engine: str) -> Iterator[Office]:
    with office(folder, engine) as made:
        yield made


def request_for(engine: str) -> dict[str, Any]:
    return ECHO_REQUEST if engine == "echo" else REAL_REQUEST


class Reading:
    """The official client reading a stream in a thread of its own."""

    def __init__(self, place: Office, request: dict[str, Any]) -> None:
        self.pieces: list[str] = []
        self.ids: set[str] = set()
        self.roles = 0
        self.finishes: list[str] = []
        self.usages: list[Any] = []
        self.times_s: list[float] = []
        self.error: BaseException | None = None
        self._place = place
        self._request = request
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            with self._place.client() as client:
                options = {"stream": True, "stream_options": {"include_usage": True}}
                for chunk in client.chat.completions.create(**self._request, **options):
                    self._take(chunk)
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.error = error

    def _take(self, chunk: Any) -> None:
        self.ids.add(chunk.id)
        self.times_s.append(time.monotonic())
        if chunk.usage is not None:
            self.usages.append(chunk.usage)
        for choice in chunk.choices:
            self.roles += choice.delta.role is not None
            if choice.delta.content:
                self.pieces.append(choice.delta.content)
            if choice.finish_reason:
                self.finishes.append(choice.finish_reason)

    def until_pieces(self, count: int) -> None:
        until(lambda: len(self.pieces) >= count or self.error, 60.0, f"{count} pieces of the answer")

    def end(self) -> str:
        self._thread.join(90.0)
        assert not self._thread.is_alive(), "the stream did not end"
        if self.error is not None:
            raise self.error
        return "".join(self.pieces)

    @property
    def longest_gap_s(self) -> float:
        return max(after - before for before, after in zip(self.times_s, self.times_s[1:], strict=False))


def unbroken(place: Office, engine: str) -> str:
    with place.client() as client:
        answer = client.chat.completions.create(**request_for(engine))
    return answer.choices[0].message.content or ""


def press_key(desk: Desk) -> None:
    desk.screen.press_key()


def kill_agent(desk: Desk) -> None:
    desk.agent_process().kill()


def kill_engine(desk: Desk) -> None:
    for each in desk.engines():
        each.kill()


def freeze_engine(desk: Desk) -> None:
    for each in desk.engines():
        each.send_signal(signal.SIGSTOP)


def cut_link(desk: Desk) -> None:
    desk.host.cut()


FAULTS = [press_key, kill_agent, kill_engine, freeze_engine, cut_link]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.timeout(240)
def test_an_answer_goes_on_when_its_desk_is_gone(
    place: Office, engine: str, fault: Callable[[Desk], None], record_property: Callable[[str, Any], None]
) -> None:
    whole = unbroken(place, engine)
    assert len(whole) > 100
    reading = Reading(place, request_for(engine))
    reading.until_pieces(20)
    desk = place.speaking()
    assert not reading.finishes, "the answer must still be running when the fault comes"
    other = next(each for each in place.desks if each is not desk)
    engines = desk.engines()
    fault(desk)
    leaving = Leaving(engines) if fault is press_key else None

    text = reading.end()

    assert text == whole
    assert len(reading.ids) == 1
    assert reading.roles == 1
    assert len(reading.finishes) == 1
    assert len(reading.usages) == 1
    response = reading.ids.pop()
    all_made = place.contributions(response)
    made = [each for each in all_made if each["useful_tokens"]]
    assert [each["node"] for each in made] == [desk.node, other.node]
    warm_ups = [each["node"] for each in all_made if not each["useful_tokens"]]
    assert warm_ups == ([other.node] if fault is press_key else [])
    usage = reading.usages[0]
    assert sum(each["useful_tokens"] for each in made) == usage.completion_tokens
    records = until(lambda: place.usage(response), 15.0, "the usage record is written")
    assert len(records) == 1
    assert records[0]["completion_tokens"] == usage.completion_tokens
    assert records[0]["prompt_tokens"] == usage.prompt_tokens
    record_property("gap_s", round(reading.longest_gap_s, 3))
    if leaving is not None:
        record_property("engine_gone_s", round(leaving.gone_s(), 2))
        assert leaving.gone_s() <= 10.0
        _no_new_work(place, engine, desk, other)
        print(f"{engine}: engine gone {leaving.gone_s():.2f} s after the key")
    print(f"{engine} {fault.__name__}: longest gap {reading.longest_gap_s:.2f} s")


class Leaving:
    """Watches, from now on, how long processes stay."""

    def __init__(self, processes: list[psutil.Process]) -> None:
        assert processes, "there must be an engine to give the machine back"
        self._processes = processes
        self._since_s = time.monotonic()
        self._gone_s: float | None = None
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while time.monotonic() - self._since_s < 60.0:
            if not any(_runs(each) for each in self._processes):
                self._gone_s = time.monotonic() - self._since_s
                return
            time.sleep(0.02)

    def gone_s(self) -> float:
        """Seconds until all were gone."""
        self._thread.join(60.0)
        assert self._gone_s is not None, "the engine is still there after a minute"
        return self._gone_s


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _no_new_work(place: Office, engine: str, desk: Desk, other: Desk) -> None:
    """Whatever is asked now goes to the other desk."""
    assert place.fleet()[desk.name]["state"] not in ("available", "serving")
    with place.client() as client:
        for _ in range(3):
            short = request_for(engine) | {"max_tokens": 3}
            answer = client.chat.completions.create(**short)
            assert [each["node"] for each in place.contributions(answer.id)] == [other.node]


def test_p34_desks_listen_on_loopback_only(place: Office) -> None:
    for desk in place.desks:
        addresses = {address.rsplit(":", 1)[0] for address in desk.host.listening()}
        assert addresses <= {"127.0.0.1", "[::1]"}, addresses
