"""Ed25519 keys in the text form of NATS ("nkeys"): operator ``O...``, account ``A...``, user ``U...``.

Text is base 32 without padding over prefix, 32 key bytes and CRC-16/XMODEM (little endian). A seed
begins with ``S`` and carries the kind of its key. Seeds are secrets: nothing here prints or logs one.
"""

import base64
import binascii
from collections.abc import Callable
from enum import IntEnum

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_SEED_PREFIX = 18 << 3
_KEY_BYTES = 32


class KeyKind(IntEnum):
    """What a key stands for; the value is the prefix byte of its public text."""

    OPERATOR = 14 << 3
    ACCOUNT = 0
    USER = 20 << 3


class SigningKey:
    """A private key of one kind. Its representation shows the public part only."""

    def __init__(self, kind: KeyKind, secret: bytes) -> None:
        """``secret``: the 32 bytes of an Ed25519 private key."""
        self.kind = kind
        self._secret = secret
        self._private = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = _encode(bytes([kind]) + self._private.public_key().public_bytes_raw())
        """The public key as text, 56 characters."""

    @classmethod
    def create(cls, kind: KeyKind, entropy: Callable[[int], bytes]) -> "SigningKey":
        """A new key; ``entropy(n)`` returns n random bytes (``os.urandom`` in programs)."""
        return cls(kind, entropy(_KEY_BYTES))

    @classmethod
    def from_seed(cls, text: str) -> "SigningKey":
        """Raises ValueError (without the text) if it is no seed."""
        raw = _decode(text)
        if len(raw) != 2 + _KEY_BYTES or raw[0] & 0xF8 != _SEED_PREFIX:
            raise ValueError("that is not the seed of a key")
        kind = ((raw[0] & 0x07) << 5) | (raw[1] >> 3)
        return cls(KeyKind(kind), raw[2:])

    def seed(self) -> str:
        """The secret as text. Keep it in a file that only its owner can read."""
        first = _SEED_PREFIX | (self.kind >> 5)
        second = (self.kind & 0x1F) << 3
        return _encode(bytes([first, second]) + self._secret)

    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of the signature."""
        return self._private.sign(data)

    def __repr__(self) -> str:
        return f"SigningKey({self.public})"


def is_public_key(text: str, kind: KeyKind) -> bool:
    """Whether ``text`` is a well-formed public key of that kind (checksum included)."""
    try:
        raw = _decode(text)
    except ValueError:
        return False
    return len(raw) == 1 + _KEY_BYTES and raw[0] == kind


def verify(public_key: str, data: bytes, signature: bytes) -> bool:
    """Whether ``signature`` over ``data`` was made with the private half of ``public_key``."""
    try:
        raw = _decode(public_key)
        if len(raw) != 1 + _KEY_BYTES:
            return False
        Ed25519PublicKey.from_public_bytes(raw[1:]).verify(signature, data)
    except (ValueError, InvalidSignature):
        return False
    return True


def _encode(raw: bytes) -> str:
    return base64.b32encode(raw + _checksum(raw)).decode().rstrip("=")


def _decode(text: str) -> bytes:
    """The bytes without the checksum. Raises ValueError."""
    padded = text + "=" * (-len(text) % 8)
    try:
        raw = base64.b32decode(padded)
    except ValueError:
        raise ValueError("that is not a key in base 32") from None
    body, checksum = raw[:-2], raw[-2:]
    if len(raw) < 3 or _checksum(body) != checksum or _encode(body) != text:
        raise ValueError("that is not a key: its checksum is wrong")
    return body


def _checksum(raw: bytes) -> bytes:
    return binascii.crc_hqx(raw, 0).to_bytes(2, "little")
