"""Merging what an old and a new connection receive while both are subscribed: nothing lost or doubled.

For a moment the server sends every message on both. What the old one receives is delivered at once
and remembered; what the new one receives waits, so that the order stays. When the old one has
received its last, the new one's messages are delivered except those already seen. Two messages with
the same subject and the same bytes are the same message: every message of panal names its attempt and
number, or instruction, or sequence. Only empty messages say nothing of themselves and always pass.
"""

import hashlib
from collections.abc import Callable

from panal.bus.nats_parser import Handler

WAITING_BYTES_MAX = 16 * 1024 * 1024


class HandOver:
    """Wraps the handlers of two connections until ``finish`` and, for latecomers, until ``forget``."""

    def __init__(self, handlers: dict[bytes, Handler], on_overfull: Callable[[], None]) -> None:
        """``on_overfull``: more waits than may wait; let go of the old connection now."""
        self._handlers = dict(handlers)
        self._on_overfull = on_overfull
        self._seen: set[bytes] = set()
        self._waiting: list[tuple[bytes, bytes, bytes]] = []
        self._waiting_bytes = 0
        self._finished = False

    def old_handlers(self) -> dict[bytes, Handler]:
        return {sid: self._recording(sid) for sid in self._handlers}

    def new_handlers(self) -> dict[bytes, Handler]:
        return {sid: self._merging(sid) for sid in self._handlers}

    def finish(self) -> None:
        """The old connection receives no more: deliver what waited."""
        self._finished = True
        waiting, self._waiting = self._waiting, []
        for sid, subject, payload in waiting:
            self._deliver_unseen(sid, subject, payload)

    def forget(self) -> None:
        """No message of the old connection can come again."""
        self._seen.clear()

    def _recording(self, sid: bytes) -> Handler:
        handler = self._handlers[sid]

        def record(subject: bytes, payload: bytes) -> None:
            self._seen.add(_digest(sid, subject, payload))
            handler(subject, payload)

        return record

    def _merging(self, sid: bytes) -> Handler:
        def merge(subject: bytes, payload: bytes) -> None:
            if self._finished:
                self._deliver_unseen(sid, subject, payload)
            else:
                self._waiting.append((sid, subject, payload))
                self._waiting_bytes += len(payload)
                if self._waiting_bytes > WAITING_BYTES_MAX:
                    self._on_overfull()

        return merge

    def _deliver_unseen(self, sid: bytes, subject: bytes, payload: bytes) -> None:
        if payload and self._seen:
            digest = _digest(sid, subject, payload)
            if digest in self._seen:
                self._seen.discard(digest)
                return
        self._handlers[sid](subject, payload)


def _digest(sid: bytes, subject: bytes, payload: bytes) -> bytes:
    return hashlib.blake2b(b"%s %s %s" % (sid, subject, payload), digest_size=16).digest()
