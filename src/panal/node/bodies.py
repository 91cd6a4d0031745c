"""Request bodies that arrive in pieces."""

import asyncio

import msgspec

from panal.core.errors import BadRequest, NodeRefused
from panal.node.engines.engine import Json
from panal.protocol.messages import BodyPart, RunAttempt

BODY_BYTES_MAX = 32 * 1024 * 1024
PARTS_MAX = 256
PARTS_S_MAX = 10.0


class BodyParts:
    """Collects the pieces of one body; they may come in any order, each once."""

    def __init__(self, run: RunAttempt) -> None:
        self._wanted = run.parts
        self._pieces: dict[int, bytes] = {1: run.body}
        self.bytes = len(run.body)
        self._changed = asyncio.Event()

    def add(self, part: BodyPart) -> None:
        """Take a piece. One that cannot belong here, or is too much, is dropped."""
        if part.number in self._pieces or not 1 < part.number <= self._wanted:
            return
        if self.bytes + len(part.body) > BODY_BYTES_MAX:
            return
        self._pieces[part.number] = part.body
        self.bytes += len(part.body)
        self._changed.set()

    async def whole(self) -> Json:
        """The decoded body. Raises NodeRefused when pieces are missing, BadRequest when it is no object."""
        if not 1 <= self._wanted <= PARTS_MAX:
            raise NodeRefused("the request comes in too many pieces")
        if len(self._pieces) < self._wanted:
            await self._wait_for_pieces()
        return decoded_body(b"".join(self._pieces[number] for number in range(1, self._wanted + 1)))

    async def _wait_for_pieces(self) -> None:
        try:
            async with asyncio.timeout(PARTS_S_MAX):
                while len(self._pieces) < self._wanted:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise NodeRefused(f"pieces of the request are missing after {PARTS_S_MAX:g} s") from error


def decoded_body(data: bytes) -> Json:
    """Raises BadRequest."""
    try:
        return msgspec.json.decode(data, type=dict)
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not a JSON object: {error}") from error
