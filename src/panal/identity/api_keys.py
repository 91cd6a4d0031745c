"""The form of API keys: ``sk-panal-``, 43 characters of base 62 (256 random bits), 6 of checksum.

The checksum (SHA-256 of what stands before it, modulo 62 to the 6th) lets tools find
keys in text and lets us turn away typing errors without asking anything. It is no secret.
"""

import hashlib
import re
from collections.abc import Callable

PREFIX = "sk-panal-"
KEY_CHARACTERS = len(PREFIX) + 43 + 6
SHOWN_CHARACTERS = len(PREFIX) + 4
PEPPER_BYTES = 32

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FORM = re.compile(r"sk-panal-[0-9A-Za-z]{49}")


def new_key(entropy: Callable[[int], bytes]) -> str:
    """A new key. ``entropy(n)`` returns n random bytes (``os.urandom`` in programs)."""
    body = PREFIX + _base62(int.from_bytes(entropy(32), "big"), 43)
    return body + _checksum(body)


def well_formed(key: str) -> bool:
    """Whether the text is a key by its form and checksum; says nothing about its being known."""
    return _FORM.fullmatch(key) is not None and _checksum(key[:-6]) == key[-6:]


def digest_of(pepper: bytes, key: bytes) -> bytes:
    """What is stored and looked up. Without the pepper, which is not in the database, it tells nothing."""
    return hashlib.sha256(pepper + key).digest()


def shown_part(key: str) -> str:
    """The beginning, by which people tell their keys apart."""
    return key[:SHOWN_CHARACTERS] + "..."


def _checksum(body: str) -> str:
    number = int.from_bytes(hashlib.sha256(body.encode()).digest(), "big")
    return _base62(number % 62**6, 6)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
