"""Keys in the text form of NATS."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.bus.nkeys import KeyKind, SigningKey, is_public_key, verify


def counted(size: int) -> bytes:
    return hashlib.sha256(b"seven").digest()[:size]


@pytest.mark.parametrize(
    ("kind", "letter"), [(KeyKind.OPERATOR, "O"), (KeyKind.ACCOUNT, "A"), (KeyKind.USER, "U")]
)
def test_texts_begin_with_the_letter_of_their_kind(kind: KeyKind, letter: str) -> None:
    key = SigningKey.create(kind, counted)
    assert key.public[0] == letter
    assert key.seed()[:2] == "S" + letter
    assert len(key.public) == 56
    assert len(key.seed()) == 58


def test_a_known_seed_gives_the_known_key() -> None:
    # Taken from the public documentation of NATS for nkeys.
    key = SigningKey.from_seed("SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY")
    assert key.public == "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


@given(st.sampled_from(list(KeyKind)), st.binary(min_size=32, max_size=32))
def test_a_seed_brings_back_its_key(kind: KeyKind, secret: bytes) -> None:
    key = SigningKey(kind, secret)
    again = SigningKey.from_seed(key.seed())
    assert again.kind is kind
    assert again.public == key.public
    assert is_public_key(key.public, kind)
    assert verify(again.public, b"data", key.sign(b"data"))


def test_a_signature_is_of_one_text_and_one_key() -> None:
    key = SigningKey.create(KeyKind.USER, counted)
    other = SigningKey(KeyKind.USER, b"\x01" * 32)
    signature = key.sign(b"data")
    assert not verify(key.public, b"date", signature)
    assert not verify(other.public, b"data", signature)
    assert not verify(key.public, b"data", signature[:-1])
    assert not verify("no key", b"data", signature)


@given(st.text(max_size=70))
def test_any_text_is_refused_in_order(text: str) -> None:
    assert not is_public_key(text, KeyKind.USER)
    with pytest.raises(ValueError, match="that is"):
        SigningKey.from_seed(text)


@pytest.mark.parametrize("position", [0, 5, 30, 55])
def test_one_wrong_character_is_noticed(position: int) -> None:
    text = SigningKey.create(KeyKind.USER, counted).public
    wrong = "B" if text[position] != "B" else "C"
    assert not is_public_key(text[:position] + wrong + text[position + 1 :], KeyKind.USER)


def test_a_key_of_another_kind_is_no_users_key() -> None:
    assert not is_public_key(SigningKey.create(KeyKind.ACCOUNT, counted).public, KeyKind.USER)
    assert not is_public_key(SigningKey.create(KeyKind.USER, counted).seed(), KeyKind.USER)


def test_nothing_shows_the_secret() -> None:
    key = SigningKey.create(KeyKind.USER, counted)
    assert repr(key) == f"SigningKey({key.public})"
    assert key.seed()[4:30] not in repr(vars(key) | {"_secret": ""})
    assert base64.b32encode(counted(32)).decode()[:20] not in repr(key)
