"""Stop strings over any split of the text."""

from hypothesis import given
from hypothesis import strategies as st

from panal.node.stops import StopMatcher, stop_list

ALPHABET = st.text(alphabet="ab\né", max_size=30)
STOPS = st.lists(st.text(alphabet="ab\né", min_size=1, max_size=4), min_size=1, max_size=3)


def run(pieces: list[str], stops: tuple[str, ...], sent: str = "") -> tuple[str, bool]:
    matcher = StopMatcher(stops, sent)
    out = ""
    for piece in pieces:
        verdict = matcher.feed(piece)
        out += matcher.held[: verdict.safe]
        matcher.release(verdict.safe)
        if verdict.hit:
            return out, True
    return out + matcher.held, False


def expected(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The first stop string to be complete ends the text; of those, the one that begins first."""
    for end in range(1, len(text) + 1):
        starts = [text.find(stop) for stop in stops if stop in text[:end]]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(ALPHABET, STOPS)
def test_letter_by_letter_the_first_complete_stop_string_ends_the_text(text: str, stops: list[str]) -> None:
    assert run(list(text), tuple(stops)) == expected(text, tuple(stops))


@given(st.lists(ALPHABET, max_size=5), STOPS)
def test_text_that_went_out_never_holds_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    out, _ = run(pieces, tuple(stops))
    assert not any(stop in out for stop in stops)


@given(ALPHABET, STOPS, st.integers(0, 30))
def test_a_joint_changes_nothing_when_nothing_was_held_back_before_it(
    text: str, stops: list[str], place: int
) -> None:
    """An attempt ends with what it released; the next makes the rest anew."""
    matcher = StopMatcher(tuple(stops))
    verdict = matcher.feed(text[:place])
    if verdict.hit:
        return
    sent = text[: verdict.safe]
    out, hit = run(list(text[len(sent) :]), tuple(stops), sent)
    assert (sent + out, hit) == expected(text, tuple(stops))


def test_a_stop_string_across_the_joint_ends_the_text_though_its_beginning_was_sent() -> None:
    assert run(["D", " and more"], ("END",), "the EN") == ("", True)


def test_a_stop_string_wholly_in_the_old_text_does_not_count_again() -> None:
    assert run(["more"], ("END",), "END ") == ("more", False)


def test_reads_the_field_as_clients_write_it() -> None:
    assert stop_list("a") == ("a",)
    assert stop_list(["a", "", "b"]) == ("a", "b")
    assert stop_list(None) == () == stop_list(7) == stop_list([1])
