"""The form of keys."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.identity.api_keys import KEY_CHARACTERS, digest_of, new_key, shown_part, well_formed

RAW = st.binary(min_size=32, max_size=32)


@given(RAW)
def test_every_new_key_is_well_formed_and_of_one_length(raw):
    key = new_key(lambda count: raw[:count])
    assert well_formed(key)
    assert len(key) == KEY_CHARACTERS
    assert key.startswith("sk-panal-")


@given(
    st.binary(min_size=32, max_size=32), st.integers(min_value=9, max_value=57), st.characters(codec="ascii")
)
def test_one_wrong_character_is_noticed(raw, place, character):
    key = new_key(lambda count: raw[:count])
    changed = key[:place] + character + key[place + 1 :]
    assert well_formed(changed) == (changed == key)


def test_different_randomness_makes_different_keys():
    assert len({new_key(os.urandom) for _ in range(200)}) == 200


@pytest.mark.parametrize(
    "text", ["", "sk-panal-", "sk-other-" + "a" * 49, "sk-panal-" + "a" * 48 + "é", "x" * 10_000]
)
def test_other_texts_are_no_keys(text):
    assert not well_formed(text)


def test_the_digest_depends_on_pepper_and_key():
    digests = {digest_of(pepper, key) for pepper in (b"a" * 32, b"b" * 32) for key in (b"k", b"l")}
    assert len(digests) == 4


def test_what_is_shown_is_far_from_enough_to_guess_the_rest():
    key = new_key(os.urandom)
    assert shown_part(key) == key[:13] + "..."
