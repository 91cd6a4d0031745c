"""Server-sent events taken apart, however the bytes arrive."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.errors import ProtocolError
from panal.node.engines.sse import SseParser

TEXTS = st.text(
    alphabet=st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=20
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(TEXTS, max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 9999)))
def test_any_segmentation_gives_the_same_events(texts: list[str], line_end: bytes, places: list[int]) -> None:
    data = b"".join(
        b": a comment" + line_end + b"event: x" + line_end + b"data: " + text.encode() + line_end + line_end
        for text in texts
    )
    parser = SseParser(10_000)
    seen = [event for piece in cut(data, places) for event in parser.feed(piece)]
    # A lone CR at the very end may still be followed by LF, so the last event needs no more than that.
    assert seen == [text.encode() for text in texts]


def test_joins_several_data_lines_of_one_event() -> None:
    assert SseParser(100).feed(b"data: a\ndata:b\ndata\n\n") == [b"a\nb\n"]


def test_ignores_comments_other_fields_and_events_without_data() -> None:
    assert SseParser(100).feed(b": ping\n\nid: 7\nretry: 3\n\ndatabase: x\n\ndata: [DONE]\n\n") == [b"[DONE]"]


def test_an_event_without_its_empty_line_is_not_an_event() -> None:
    assert SseParser(100).feed(b"data: half") == []


@pytest.mark.parametrize("data", [b"data: " + b"x" * 200, b"data: xxxxxxxxxxxxxxxxxx\n" * 10])
def test_refuses_an_event_that_is_too_large(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        SseParser(100).feed(data)
