"""The rule for names: what is the same name, and what may be one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.core.names import NAME_CHARACTERS_MAX, name_fault, name_key

SAME = [
    ("SmolLM2-135M", "smollm2-135m"),
    ("  Fast ", "fast"),
    ("STRASSE", "straße"),
    ("ÑANDÚ", "ñandú"),
    ("cafe\u0301", "Caf\u00e9"),
    ("\u03a3\u03a3", "\u03c3\u03c2"),
    ("\u212a2", "k2"),
]
DIFFERENT = [("a b", "ab"), ("a  b", "a b"), ("a-b", "a_b"), ("e", "é"), ("org/m", "m"), ("m:8b", "m8b")]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_these_are_one_name(one: str, other: str) -> None:
    assert name_key(one) == name_key(other) != ""


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_these_are_two_names(one: str, other: str) -> None:
    assert name_key(one) != name_key(other)


@given(st.text())
def test_the_key_of_a_key_is_itself(name: str) -> None:
    assert name_key(name_key(name)) == name_key(name)


@given(st.text())
def test_case_and_spaces_around_never_make_another_name(name: str) -> None:
    for written in (f" {name}", f"{name}   ", name.casefold()):
        assert name_key(written) == name_key(name)


@given(st.text(st.characters(codec="ascii")))
def test_plain_letters_follow_the_rule_for_all_letters(name: str) -> None:
    assert name_key(name) == name.strip(" ").casefold() == name_key(name.upper())


@given(st.text(max_size=300))
def test_what_may_be_a_name_has_a_key_that_fits_the_store(name: str) -> None:
    if not name_fault(name):
        assert 0 < len(name_key(name)) <= NAME_CHARACTERS_MAX
        assert name.isprintable()


@pytest.mark.parametrize("name", ["", "   ", "a\nb", "a\0", "x" * 257, "ΐ" * 100, "\u00a0a", "\ud800"])
def test_what_is_no_name_is_told(name: str) -> None:
    assert name_fault(name).startswith("must ")
