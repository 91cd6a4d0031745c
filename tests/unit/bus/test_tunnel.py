"""What a proxy may answer: opened, refused in words, or nonsense; cut anywhere."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.bus.tunnel import HEAD_BYTES_MAX, Talk
from panal.core.errors import BusError
from panal.core.proxies import Proxy

PROXY = Proxy.parse("http://user:geheim@proxy.example.com:3128")
BARE = Proxy.parse("http://proxy.example.com:3128")
OPEN = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n"


def hear(*pieces: bytes, proxy: Proxy = PROXY) -> bool:
    talk = Talk(proxy, "gpu.example.com", 7443)
    return [talk.hear(piece) for piece in pieces][-1]


def refusal(*pieces: bytes, proxy: Proxy = PROXY) -> str:
    with pytest.raises(BusError) as told:
        hear(*pieces, proxy=proxy)
    assert "geheim" not in told.value.message and PROXY.authorization not in told.value.message
    assert "proxy.example.com:3128" in told.value.message
    return told.value.message


def test_the_question_names_the_target_and_carries_the_login() -> None:
    assert Talk(BARE, "gpu.example.com", 7443).question() == (
        b"CONNECT gpu.example.com:7443 HTTP/1.1\r\nHost: gpu.example.com:7443\r\n\r\n"
    )
    assert b"CONNECT [2001:db8::1]:1 " in Talk(BARE, "2001:db8::1", 1).question()
    assert b"CONNECT xn--gp-yka.example:1 " in Talk(BARE, "gpü.example", 1).question()
    assert b"\r\nProxy-Authorization: Basic " in Talk(PROXY, "gpu.example.com", 7443).question()


@given(st.lists(st.integers(1, len(OPEN) - 1), max_size=6, unique=True))
def test_a_good_answer_is_understood_however_it_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(OPEN)]
    pieces = [OPEN[a:b] for a, b in pairwise(places)]
    talk = Talk(PROXY, "gpu.example.com", 7443)
    assert [talk.hear(piece) for piece in pieces] == [False] * (len(pieces) - 1) + [True]


@given(st.lists(st.binary(min_size=1), min_size=1))
def test_no_bytes_make_anything_but_an_answer_or_a_sentence(pieces: list[bytes]) -> None:
    talk = Talk(PROXY, "gpu.example.com", 7443)
    for piece in [*pieces, b""]:
        try:
            if talk.hear(piece):
                break
        except BusError as error:
            assert "proxy.example.com:3128" in error.message
            break
    else:
        raise AssertionError("the end of the answer was not noticed")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 No\r\n\r\n", "does not accept its user and password (407)"),
        (
            b"HTTP/1.0 403 Forbidden\r\nX: y\r\n\r\n<html>",
            "does not let this machine reach gpu.example.com:7443",
        ),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "answered 502 Bad Gateway"),
        (b"HTTP/1.1 302 " + b"x" * 500 + b"\r\n\r\n", "answered 302 xxx"),
        (b"HTTP/1.1 20 x\r\n\r\n", "is no HTTP proxy"),
        (b"HTTP/1.1\r\n\r\n", "is no HTTP proxy"),
        (b"SSH-2.0-OpenSSH\r\n", "is no HTTP proxy"),
        (b"\x15\x03\x01", "is no HTTP proxy"),
        (OPEN + b"INFO {", "sends more than its answer"),
        (b"HTTP/1.1 200 " + b"x" * HEAD_BYTES_MAX, "too long"),
    ],
)
def test_a_refusal_is_one_clear_sentence(answer: bytes, words: str) -> None:
    assert words in refusal(answer)


def test_who_gave_no_login_is_told_where_to_give_it() -> None:
    assert "give them in node.proxy" in refusal(b"HTTP/1.1 407 No\r\n\r\n", proxy=BARE)


@pytest.mark.parametrize("host", ["a b", "a\rb", "a\x00b", "ü" * 80, "a..ü"])
def test_what_is_no_name_is_asked_of_no_proxy(host: str) -> None:
    with pytest.raises(BusError, match="not one that a proxy can be asked for"):
        Talk(PROXY, host, 7443).question()


def test_hanging_up_is_told() -> None:
    assert "hung up" in refusal(b"HTTP/1.1 200", b"")
    assert "hung up" in refusal(b"")
