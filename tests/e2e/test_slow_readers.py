"""One client that stops reading harms nobody: it is dropped in time, its memory is bounded, its slot free."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from tests.support.asking import say, wire
from tests.support.installation import processes_naming, until
from tests.support.served import Served

STALL_S = 5
ENVIRONMENT = {"PANAL_GATEWAY__WRITE_STALL_S_MAX": str(STALL_S), "PANAL_NODE__SLOTS": "256"}
STALLED_BYTES_MAX = 400 * 1024
"""Of the gateway's own memory, for each stalled stream."""
STALLERS = 20
LONG = "count 20000"
FAST = {"delay_token_s": 0.00001}
"""As fast as the engine can and still hear others."""


class Staller:
    """Asks for an endless answer, takes its beginning, and then leaves the window shut."""

    def __init__(self, served: Served, words: str = LONG, *, choices: int = 8) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(20.0)
        self.socket.connect(("127.0.0.1", served.installation.http_port))
        self.socket.sendall(request(served, wire(say(words, **FAST), stream=True, n=choices)))
        head = self.socket.recv(1024).decode("latin-1")
        assert head.startswith("HTTP/1.1 200")
        self.request_id = head.partition("x-request-id: ")[2].split("\r\n")[0]

    def rest(self) -> bytes:
        """What is still there until the end."""
        found = b""
        try:
            while piece := self.socket.recv(65536):
                found += piece
        except ConnectionError:
            pass
        return found


def request(served: Served, body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    """A request as it is on the wire."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {served.installation.key}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def gateway_of(served: Served) -> psutil.Process:
    named = processes_naming(str(served.installation.home))
    return next(each for each in named if "gateway" in each.cmdline())


def test_one_reader_that_stops_is_dropped_and_100_others_notice_nothing(served: Served) -> None:
    engine = served.engine()
    before = engine.stats()
    staller = Staller(served)
    begun_s = time.monotonic()
    numbers = " ".join(str(number) for number in range(1, 41))

    def read(_number: int) -> None:
        events = served.events("/v1/chat/completions", wire(say("count 40", delay_token_s=0.01)))
        chunks = [json.loads(event) for event in events[:-1] if not event.startswith(":")]
        assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == numbers
        assert events[-1] == "[DONE]"

    with ThreadPoolExecutor(100) as pool:
        for done in [pool.submit(read, number) for number in range(100)]:
            done.result()
    engine.until_cancelled(before["cancelled"], STALL_S + 10.0)
    assert time.monotonic() - begun_s >= STALL_S - 1.0, "it was given its time"
    served.until_idle()
    assert served.engine().stats()["running"] == 0
    rest = staller.rest()
    assert b"[DONE]" not in rest
    assert b'"finish_reason":"stop"' not in rest
    staller.socket.close()
    record = served.record_of(staller.request_id)
    assert (record["outcome"], record["partial"]) == ("client_gone", True)


@pytest.mark.timeout(180)
def test_stalled_readers_cost_a_bounded_memory(served: Served) -> None:
    """20 at once: the gateway keeps no more of each than is under way, and the engine waits."""
    gateway, engine = gateway_of(served), served.engine()
    most: list[float] = []
    for _ in range(2):
        served.until_idle()
        before_bytes = gateway.memory_info().rss
        stallers = [Staller(served) for _ in range(STALLERS)]
        seen = 0
        ends_s = time.monotonic() + STALL_S + 15.0
        while engine.stats()["running"] and time.monotonic() < ends_s:
            seen = max(seen, gateway.memory_info().rss)
            time.sleep(0.1)
        most.append((seen - before_bytes) / STALLERS)
        served.until_idle()
        for staller in stallers:
            assert b"[DONE]" not in staller.rest()
            staller.socket.close()
    print(f"{[round(each / 1024) for each in most]} KiB for each stalled stream")
    assert max(most) <= STALLED_BYTES_MAX


def test_a_reader_that_is_only_slow_gets_everything(served: Served) -> None:
    """It reads in sips with pauses that are shorter than the limit."""
    staller = Staller(served, "count 3000", choices=1)
    found = b""
    while not found.endswith(b"0\r\n\r\n"):
        time.sleep(0.002)
        piece = staller.socket.recv(32 * 1024)
        assert piece, f"it was dropped: {served.record_of(staller.request_id)} {found[-80:]!r}"
        found += piece
    staller.socket.close()
    assert b"[DONE]" in found


def test_a_stalled_whole_answer_is_dropped_too(served: Served) -> None:
    """Not streamed, and larger than all buffers: nothing stays behind."""
    served.until_idle()
    staller = socket.socket()
    staller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    staller.connect(("127.0.0.1", served.installation.http_port))
    staller.sendall(request(served, {"model": "echo", "input": ["a"] * 2048}, "/v1/embeddings"))
    until(lambda: served.gauge("panal_connections") == 2.0, 20.0, "the staller, and whoever scrapes")
    until(lambda: served.gauge("panal_connections") == 1.0, STALL_S + 5.0, "it is dropped")
    staller.close()
