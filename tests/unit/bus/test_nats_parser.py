"""The parser understands the same, however the bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.bus.nats_parser import Handler, Parser
from panal.core.errors import ProtocolError

Heard = list[tuple[str, bytes, bytes]]


class Ear:
    """Notes everything in order."""

    def __init__(self) -> None:
        self.heard: Heard = []
        self.failures: list[Exception] = []
        self.handlers: dict[bytes, Handler] = {
            b"1": lambda subject, payload: self.heard.append(("1", subject, payload)),
            b"22": lambda subject, payload: self.heard.append(("22", subject, payload)),
        }
        self.parser = Parser(self.handlers, self)

    def on_info(self, json_text: bytes) -> None:
        self.heard.append(("info", b"", json_text))

    def on_ping(self) -> None:
        self.heard.append(("ping", b"", b""))

    def on_pong(self) -> None:
        self.heard.append(("pong", b"", b""))

    def on_error(self, text: str) -> None:
        self.heard.append(("error", b"", text.encode()))

    def on_handler_failed(self, error: Exception) -> None:
        self.failures.append(error)


_subjects = st.sampled_from([b"a", b"panal.up.U123.frames.gw_1", b"x.y"])
_payloads = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"\r\n", b"MSG a 1 3\r\nabc\r\n", b"PING\r\n", b"x" * 5000])
)


def _message(subject: bytes, sid: str, payload: bytes, reply: bool) -> tuple[bytes, Heard]:
    head = b"MSG %s %s %s%d" % (subject, sid.encode(), b"answer.to " if reply else b"", len(payload))
    return head + b"\r\n" + payload + b"\r\n", [(sid, subject, payload)]


def _with_headers(subject: bytes, sid: str, payload: bytes) -> tuple[bytes, Heard]:
    headers = b"NATS/1.0 503\r\n\r\n"
    head = b"HMSG %s %s %d %d" % (subject, sid.encode(), len(headers), len(headers) + len(payload))
    return head + b"\r\n" + headers + payload + b"\r\n", [(sid, subject, headers + payload)]


_steps = st.one_of(
    st.builds(_message, _subjects, st.sampled_from(["1", "22"]), _payloads, st.booleans()),
    st.builds(_with_headers, _subjects, st.sampled_from(["1", "22"]), _payloads),
    st.sampled_from(
        [
            (b"PING\r\n", [("ping", b"", b"")]),
            (b"PONG\r\n", [("pong", b"", b"")]),
            (b"+OK\r\n", []),
            (b"-ERR 'Stale Connection'\r\n", [("error", b"", b"Stale Connection")]),
            (b'INFO {"nonce":"n"}\r\n', [("info", b"", b'{"nonce":"n"}')]),
            (b"MSG a 99 2\r\nno\r\n", []),
        ]
    ),
)


@given(st.lists(_steps, max_size=12), st.data())
def test_every_cutting_of_the_bytes_gives_the_same(
    steps: list[tuple[bytes, Heard]], data: st.DataObject
) -> None:
    stream = b"".join(wire for wire, _ in steps)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=30))
    edges = [0, *sorted(cuts), len(stream)]
    ear = Ear()
    for start, stop in pairwise(edges):
        ear.parser.feed(stream[start:stop])
    assert ear.heard == [heard for _, expected in steps for heard in expected]


@given(st.lists(_steps, max_size=4))
def test_single_bytes_give_the_same(steps: list[tuple[bytes, Heard]]) -> None:
    ear = Ear()
    for byte in b"".join(wire for wire, _ in steps):
        ear.parser.feed(bytes([byte]))
    assert ear.heard == [heard for _, expected in steps for heard in expected]


@pytest.mark.parametrize(
    "stream",
    [
        b"HELLO\r\n",
        b"MSG a\r\n",
        b"MSG a 1 x\r\n",
        b"MSG a 1 -5\r\n",
        b"MSG a 1 99999999999\r\n",
        b"MSG a 1 3\r\nabcdef\r\n",
        b"HMSG a 1 12 x\r\n",
        b"x" * 70_000,
    ],
)
@pytest.mark.parametrize("piece", [1_000_000, 1000, 7])
def test_what_is_not_nats_is_a_fault(stream: bytes, piece: int) -> None:
    ear = Ear()
    with pytest.raises(ProtocolError):
        for start in range(0, len(stream), piece):
            ear.parser.feed(stream[start : start + piece])
    assert ear.heard == []


def test_a_failing_handler_is_reported_and_the_next_message_comes() -> None:
    ear = Ear()

    def fail(_subject: bytes, _payload: bytes) -> None:
        raise RuntimeError("a fault of ours")

    ear.handlers[b"1"] = fail
    ear.parser.feed(b"MSG a 1 1\r\nx\r\nMSG a 22 1\r\ny\r\n")
    assert ear.heard == [("22", b"a", b"y")]
    assert [str(error) for error in ear.failures] == ["a fault of ours"]


def test_a_subscription_that_ends_while_messages_wait_hears_no_more() -> None:
    ear = Ear()

    def last(_subject: bytes, payload: bytes) -> None:
        ear.heard.append(("1", b"a", payload))
        ear.handlers.clear()

    ear.handlers[b"1"] = last
    ear.parser.feed(b"MSG a 1 1\r\nx\r\nMSG a 1 1\r\ny\r\nMSG a 22 1\r\nz\r\n")
    assert ear.heard == [("1", b"a", b"x")]
