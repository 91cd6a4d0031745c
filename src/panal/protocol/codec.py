"""Bytes to messages and back, with the size limit on both sides."""

from typing import Generic, TypeVar

import msgspec

from panal.core.errors import ProtocolError
from panal.protocol.messages import MESSAGE_BYTES_MAX, Message

M = TypeVar("M", bound=Message)

RECEIVED_BYTES_MAX = 1024 * 1024
_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """MessagePack of a message. Raises ProtocolError if it is over the limit."""
    data = _encoder.encode(message)
    if len(data) > MESSAGE_BYTES_MAX + 64 * 1024:
        raise ProtocolError(f"a {type(message).__name__} of {len(data)} bytes is too large to send")
    return data


class Decoder(Generic[M]):
    """Decodes one type of message. Make it once, use it for every message of its subject."""

    def __init__(self, kind: type[M]) -> None:
        self._kind = kind
        self._decoder = msgspec.msgpack.Decoder(kind)

    def decode(self, data: bytes | memoryview) -> M:
        """Raises ProtocolError for bytes that are no such message."""
        if len(data) > RECEIVED_BYTES_MAX:
            raise ProtocolError(f"a {self._kind.__name__} of {len(data)} bytes is too large")
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, ValueError) as error:
            raise ProtocolError(f"not a {self._kind.__name__}: {error}") from error
