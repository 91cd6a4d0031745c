"""What the three sides need from a connection to the bus, whatever carries it."""

from typing import Protocol

from panal.bus.nats_client import LinkEvents
from panal.bus.nats_parser import Handler

NOBODY_HEARS = b"NATS/1.0 503"
"""Beginning of what the server answers to a message that nobody hears."""


class Link(Protocol):
    """A connection that publishes at once and calls handlers directly (see seam.py for the promises)."""

    @property
    def connected(self) -> bool: ...

    def subscribe(self, subject: str, handler: Handler) -> bytes: ...

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"") -> None:
        """Raises BusError when it cannot be buffered.

        ``reply``: a subject of this link that hears NOBODY_HEARS if no link has a subscription for
        ``subject``.
        """
        ...

    async def start(self, events: LinkEvents, timeout_s: float) -> None:
        """Raises BusError when the bus cannot be reached in time."""
        ...

    async def replace(self, timeout_s: float) -> None:
        """Change to a connection with a fresh credential, make-before-break."""
        ...

    async def flush(self, timeout_s: float) -> None:
        """Return when all that the bus had for us before this call has arrived. Raises BusError."""
        ...

    async def close(self) -> None: ...


class LinkPair:
    """Two links of one side: one for data, one for news. It counts as connected when both are."""

    def __init__(self, data: Link, news: Link) -> None:
        self.data = data
        self.news = news
        self._events: LinkEvents | None = None
        self._reported = False
        self._refusal_told = False

    @property
    def connected(self) -> bool:
        return self.data.connected and self.news.connected

    async def start(self, events: LinkEvents, timeout_s: float) -> None:
        """Raises BusError, and leaves nothing open, when one of the two cannot connect."""
        self._events = events
        await self.data.start(self, timeout_s)
        try:
            await self.news.start(self, timeout_s)
        except BaseException:
            await self.data.close()
            raise

    async def replace(self, timeout_s: float) -> None:
        self._refusal_told = False
        await self.data.replace(timeout_s)
        await self.news.replace(timeout_s)

    async def flush(self, timeout_s: float) -> None:
        await self.news.flush(timeout_s)
        await self.data.flush(timeout_s)

    async def close(self) -> None:
        await self.data.close()
        await self.news.close()

    def on_connection(self, connected: bool) -> None:
        both = connected and self.connected
        if both != self._reported and self._events is not None:
            self._reported = both
            self._refusal_told = self._refusal_told and not both
            self._events.on_connection(both)

    def on_refused(self, reason: str) -> None:
        """Passed on once, until a connection comes about or a fresh credential is tried."""
        if self._events is not None and not self._refusal_told:
            self._refusal_told = True
            self._events.on_refused(reason)

    def on_violation(self, text: str) -> None:
        if self._events is not None:
            self._events.on_violation(text)
