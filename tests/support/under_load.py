"""A steady set of clients through a fault, each answer judged: whole and exact, retriable, or wrong.

Wrong is what no client can repair: a truncated answer that looks finished, repeated text, a refusal
that blames the caller, a hang.
"""

import contextlib
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

HANG_S_MAX = 40.0
RETRIABLE_STATUSES = frozenset({429, 502, 503, 504})
NUMBERS = 60
TEXT = " ".join(map(str, range(1, NUMBERS + 1)))
DELAY_TOKEN_S = 0.01


@dataclass
class Outcome:
    """One request. ``kind``: complete, or what else it was; ``wrong`` says what no client can repair."""

    stream: bool
    begun_s: float
    kind: str = ""
    wrong: str = ""
    ended_s: float = 0.0
    response_id: str = ""
    text: str = ""

    @property
    def took_s(self) -> float:
        return self.ended_s - self.begun_s


@dataclass
class UnderLoad:
    """Half of the clients stream. ``outcomes`` in the order of their ends."""

    port: int
    key: str
    clients: int = 6
    model: str = "echo"
    outcomes: list[Outcome] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for number in range(self.clients):
            thread = threading.Thread(target=self._ask_on, args=(number % 2 == 0,))
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Ask nothing more, and wait for what runs."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(HANG_S_MAX * 2)
            assert not thread.is_alive(), "a client hangs"

    def completed_since(self, monotonic_s: float) -> int:
        """Answers that were asked for after that moment and are whole."""
        return sum(each.kind == "complete" and each.begun_s > monotonic_s for each in self.outcomes)

    @property
    def kinds(self) -> Counter[str]:
        return Counter(f"{'stream' if each.stream else 'whole'} {each.kind}" for each in self.outcomes)

    @property
    def wrong(self) -> list[str]:
        return [each.wrong for each in self.outcomes if each.wrong]

    @property
    def complete(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.kind == "complete"]

    def table(self) -> str:
        longest_s = max((each.took_s for each in self.outcomes), default=0.0)
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return f"{len(self.outcomes)} requests: {kinds}; {len(self.wrong)} wrong; longest {longest_s:.1f} s"

    def _ask_on(self, stream: bool) -> None:
        while not self._stopped.is_set():
            outcome = Outcome(stream, time.monotonic())
            try:
                self._ask(outcome)
            except TimeoutError:
                outcome.kind, outcome.wrong = "hang", f"nothing for {HANG_S_MAX:g} s"
            except (OSError, http.client.HTTPException) as error:
                outcome.kind = f"cut ({type(error).__name__})"
            outcome.ended_s = time.monotonic()
            if outcome.text and not TEXT.startswith(outcome.text):
                outcome.wrong = f"text that was never said: {outcome.text!r}"
            self.outcomes.append(outcome)
            if outcome.kind != "complete":
                self._stopped.wait(0.1)

    def _ask(self, outcome: Outcome) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S_MAX)
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": f"count {NUMBERS}"}],
            "stream": outcome.stream,
            "x_echo": {"delay_token_s": DELAY_TOKEN_S},
        }
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                self._refused(outcome, answer)
            elif outcome.stream:
                _read_stream(outcome, answer)
            else:
                whole = json.loads(answer.read())
                outcome.response_id = whole["id"]
                outcome.text = whole["choices"][0]["message"]["content"]
                _judge_end(outcome, finished=whole["choices"][0]["finish_reason"] == "stop")
        finally:
            connection.close()

    def _refused(self, outcome: Outcome, answer: http.client.HTTPResponse) -> None:
        outcome.kind = str(answer.status)
        said = answer.read()[:300]
        if answer.status not in RETRIABLE_STATUSES:
            outcome.wrong = f"{answer.status} {said!r}"
        elif answer.status in (429, 503) and not answer.getheader("retry-after"):
            outcome.wrong = f"{answer.status} without Retry-After: {said!r}"


def _read_stream(outcome: Outcome, answer: http.client.HTTPResponse) -> None:
    """To the end of the response; a connection that is closed before raises."""
    finished = done = False
    for line in _lines(answer):
        if not line.startswith(b"data: "):
            continue
        if done or (finished and b'"error"' in line):
            outcome.wrong = f"something after the end: {line[:100]!r}"
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            done = True
            continue
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            outcome.kind = f"error event ({chunk['error']['code']})"
            continue
        outcome.response_id = chunk["id"]
        for choice in chunk["choices"]:
            outcome.text += choice["delta"].get("content") or ""
            finished = finished or choice["finish_reason"] is not None
    if outcome.kind and done:
        outcome.wrong = "an error and a [DONE]"
    elif not outcome.kind:
        _judge_end(outcome, finished=finished and done)


def _lines(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Lines to the end of the response. Raises IncompleteRead where the connection ends before it."""
    rest = b""
    while data := answer.read1(65536):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _judge_end(outcome: Outcome, *, finished: bool) -> None:
    """The response ended in order: then it must be whole."""
    outcome.kind = "complete"
    if not finished or outcome.text != TEXT:
        outcome.kind, outcome.wrong = "truncated", f"it looks finished: {outcome.text!r}"


@contextlib.contextmanager
def under_load(port: int, key: str, clients: int = 6) -> Iterator[UnderLoad]:
    load = UnderLoad(port, key, clients)
    load.start()
    try:
        yield load
    finally:
        load.stop()
