"""One connection against a server that is played by the test."""

import asyncio
import json

import pytest

from panal.bus import nats_connection
from panal.bus.credentials import Login
from panal.bus.nats_connection import NatsConnection, Refused
from panal.core.errors import BusError


class FakeTransport(asyncio.Transport):
    """Remembers what was written; ends as a real one does, in a later turn of the loop."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.written: list[bytes] = []
        self.buffered = 0
        self.ended = ""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        self._end("close")

    def abort(self) -> None:
        self._end("abort")

    def _end(self, how: str) -> None:
        self.ended = how
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


class Observer:
    def __init__(self) -> None:
        self.ended: list[NatsConnection] = []
        self.lame_ducks = 0
        self.violations: list[str] = []
        self.silences: list[bool] = []

    def on_silent(self, connection: NatsConnection) -> None:
        self.silences.append(connection.silent)

    def on_ended(self, connection: NatsConnection) -> None:
        self.ended.append(connection)

    def on_lame_duck(self, connection: NatsConnection) -> None:
        self.lame_ducks += 1

    def on_violation(self, text: str) -> None:
        self.violations.append(text)


class Talk:
    """A connection whose server has just been connected to."""

    def __init__(self) -> None:
        self.observer = Observer()
        login = Login(lambda: "credential", lambda nonce: b"signed " + nonce)
        self.connection = NatsConnection(login, "test", self.observer)
        self.transport = FakeTransport(self.connection)
        self.connection.connection_made(self.transport)

    def server_says(self, data: bytes) -> None:
        self.connection.data_received(data)

    async def turn(self) -> None:
        await asyncio.sleep(0)

    async def greet(self) -> None:
        self.server_says(b'INFO {"nonce":"abc"}\r\n')
        self.server_says(b"PONG\r\n")
        await self.turn()
        self.transport.written.clear()


async def test_it_greets_with_its_credential_and_a_signature_of_the_nonce() -> None:
    talk = Talk()
    talk.server_says(b'INFO {"nonce":"abc"}\r\n')
    [hello] = talk.transport.written
    line, ping, rest = hello.split(b"\r\n")
    options = json.loads(line.removeprefix(b"CONNECT "))
    assert options["jwt"] == "credential"
    assert options["sig"] == "c2lnbmVkIGFiYw"
    assert options["echo"] is options["verbose"] is False
    assert options["headers"] is options["no_responders"] is True
    assert (ping, rest) == (b"PING", b"")


@pytest.mark.parametrize("info", [b"{}", b'{"nonce":""}', b"[]", b"no json"])
async def test_a_server_that_asks_for_no_proof_gets_nothing(info: bytes) -> None:
    talk = Talk()
    talk.server_says(b"INFO " + info + b"\r\n")
    await talk.turn()
    assert talk.transport.written == []
    assert talk.transport.ended == "abort"
    assert talk.observer.ended == [talk.connection]


async def test_pings_are_answered() -> None:
    talk = Talk()
    await talk.greet()
    talk.server_says(b"PING\r\n")
    assert talk.transport.written == [b"PONG\r\n"]


class Watched(Talk):
    """A connection whose looks at its server the test makes itself, at times that it says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now_s = 1000.0
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(self.connection, "_loop", FakeTime(loop, self))

    async def look_after(self, seconds: float, *, late_s: float = 0.0) -> None:
        self.now_s += seconds
        self.connection._look_due_s = self.now_s - late_s
        self.connection._look()
        await self.turn()


class FakeTime:
    """The event loop with a clock of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, talk: Watched) -> None:
        self._loop = loop
        self._talk = talk

    def time(self) -> float:
        return self._talk.now_s

    def call_at(self, _when: float, _look: object) -> asyncio.TimerHandle:
        return self._loop.call_later(1000.0, lambda: None)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)


async def test_a_server_that_does_not_answer_is_away_then_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Watched(monkeypatch)
    await talk.greet()
    await talk.look_after(1.0)
    assert talk.transport.written == [b"PING\r\n"]
    await talk.look_after(1.0)
    assert not talk.connection.silent
    await talk.look_after(1.5)
    assert talk.connection.silent and talk.transport.ended == ""
    await talk.look_after(7.0)
    assert talk.transport.ended == ""
    await talk.look_after(1.0)
    assert talk.transport.ended == "abort"
    assert talk.connection.end_reason == "the server does not answer"
    assert talk.observer.silences == [True]
    assert talk.transport.written == [b"PING\r\n"], "one open question is enough"
    talk.connection._look()


async def test_a_server_that_answers_again_is_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Watched(monkeypatch)
    await talk.greet()
    for _ in range(3):
        await talk.look_after(1.0)
        await talk.look_after(2.5)
        assert talk.connection.silent
        talk.server_says(b"PONG\r\n")
        assert not talk.connection.silent
    assert talk.observer.silences == [True, False] * 3
    talk.connection.abort("end of test")


async def test_whoever_says_anything_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Watched(monkeypatch)
    await talk.greet()
    for _ in range(20):
        await talk.look_after(1.0)
        talk.server_says(b"PING\r\n")
    assert talk.transport.ended == "" and talk.observer.silences == []
    talk.connection.abort("end of test")


async def test_a_process_that_was_held_up_itself_judges_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Watched(monkeypatch)
    await talk.greet()
    await talk.look_after(1.0)
    await talk.look_after(30.0, late_s=29.0)
    assert talk.transport.ended == "" and not talk.connection.silent
    talk.server_says(b"PONG\r\n")
    await talk.look_after(1.0)
    assert talk.transport.ended == "" and not talk.connection.silent
    talk.connection.abort("end of test")


async def test_flushes_end_in_the_order_of_their_answers() -> None:
    talk = Talk()
    await talk.greet()
    first = asyncio.create_task(talk.connection.flush(5))
    second = asyncio.create_task(talk.connection.flush(5))
    await talk.turn()
    talk.server_says(b"PONG\r\n")
    await talk.turn()
    await talk.turn()
    assert first.done()
    assert not second.done()
    talk.server_says(b"PONG\r\n")
    await second


async def test_a_flush_fails_when_the_connection_ends_or_nothing_comes() -> None:
    talk = Talk()
    await talk.greet()
    with pytest.raises(BusError, match="did not answer"):
        await talk.connection.flush(0.01)
    waiting = asyncio.create_task(talk.connection.flush(5))
    await talk.turn()
    talk.connection.abort("gone")
    with pytest.raises(BusError, match="gone"):
        await waiting


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("Authorization Violation", True),
        ("User Authentication Expired", True),
        ("User Authentication Revoked", True),
        ("Account Authentication Expired", True),
        ("Authentication Timeout", False),
        ("Stale Connection", False),
        ("maximum connections exceeded", False),
    ],
)
async def test_the_servers_last_word_says_whether_the_credential_was_at_fault(
    text: str, refused: bool
) -> None:
    talk = Talk()
    talk.server_says(b'INFO {"nonce":"abc"}\r\n')
    talk.server_says(b"-ERR '" + text.encode() + b"'\r\n")
    await talk.turn()
    assert talk.connection.refused is refused
    assert talk.connection.end_reason == text
    with pytest.raises(Refused if refused else BusError):
        await talk.connection._ready


async def test_a_violation_leaves_the_connection_alone() -> None:
    talk = Talk()
    await talk.greet()
    talk.server_says(b"-ERR 'Permissions Violation for Publish to \"x\"'\r\n")
    await talk.turn()
    assert talk.observer.violations == ['Permissions Violation for Publish to "x"']
    assert talk.connection.alive


async def test_a_lame_duck_is_noticed_once() -> None:
    talk = Talk()
    await talk.greet()
    for _ in range(3):
        talk.server_says(b'INFO {"nonce":"x","ldm":true}\r\n')
    talk.server_says(b'INFO {"connect_urls":[]}\r\n')
    assert talk.observer.lame_ducks == 1


async def test_the_first_of_a_turn_leaves_at_once_and_the_others_together() -> None:
    talk = Talk()
    await talk.greet()
    for text in (b"a", b"b", b"c"):
        talk.connection.send(text)
    assert talk.transport.written == [b"a"]
    await talk.turn()
    assert talk.transport.written == [b"a", b"bc"]
    talk.connection.send(b"d")
    assert talk.transport.written == [b"a", b"bc", b"d"]


async def test_what_waits_for_the_end_of_the_turn_still_leaves_before_a_close() -> None:
    talk = Talk()
    await talk.greet()
    talk.connection.send(b"a")
    talk.connection.send(b"b")
    talk.connection.close()
    await talk.turn()
    assert talk.transport.written == [b"a", b"b"]
    with pytest.raises(BusError):
        talk.connection.send(b"c")


async def test_nothing_more_is_taken_when_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_connection, "PENDING_BYTES_MAX", 100)
    talk = Talk()
    await talk.greet()
    talk.connection.pause_writing()
    talk.transport.buffered = 60
    talk.connection.send(b"x" * 30)
    talk.connection.send(b"x" * 30)  # waits for the end of the turn and counts
    with pytest.raises(BusError, match="Too much"):
        talk.connection.send(b"x" * 30)
    await talk.turn()
    talk.connection.resume_writing()
    talk.connection.send(b"x" * 30)


async def test_bytes_that_are_not_nats_end_the_connection() -> None:
    talk = Talk()
    await talk.greet()
    talk.server_says(b"HTTP/1.1 400 Bad Request\r\n")
    await talk.turn()
    assert talk.transport.ended == "abort"


async def test_an_answer_to_no_question_ends_the_connection() -> None:
    talk = Talk()
    await talk.greet()
    talk.server_says(b"PONG\r\n")
    await talk.turn()
    assert talk.transport.ended == "abort"


async def test_a_failing_handler_is_reported_to_the_loop_and_the_rest_is_delivered() -> None:
    talk = Talk()
    await talk.greet()
    heard: list[bytes] = []
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: reported.append(context["exception"])
    )

    def fail(_subject: bytes, _payload: bytes) -> None:
        raise RuntimeError("ours")

    talk.connection.handlers[b"1"] = fail
    talk.connection.handlers[b"2"] = lambda _subject, payload: heard.append(payload)
    talk.server_says(b"MSG a 1 1\r\nx\r\nMSG a 2 1\r\ny\r\n")
    assert heard == [b"y"]
    assert [str(error) for error in reported] == ["ours"]
    assert talk.connection.alive
