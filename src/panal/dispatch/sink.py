"""Where the final client bytes of an answer go. The gateway's HTTP connection is one; tests have others."""

from collections.abc import Callable
from typing import Protocol


class Sink(Protocol):
    """A client's end of a stream. All calls happen in the event loop; none of them blocks.

    The path sets the two callbacks before it begins and takes them back at the end.
    """

    on_gone: Callable[[], None] | None
    """Called once when the client has left."""
    on_drained: Callable[[], None] | None
    """Called when a full buffer towards the client has been read."""
    resumes: int
    """Set at the end: how often the answer went on elsewhere."""

    @property
    def gone(self) -> bool:
        """Whether the client has left."""
        ...

    @property
    def full(self) -> bool:
        """Whether the client reads too slowly and its buffer is full now."""
        ...

    @property
    def started(self) -> bool:
        """Whether a response has begun, so that an error must travel inside it."""
        ...

    def write(self, data: bytes) -> None:
        """Send bytes of a streamed answer; the first call begins the response."""
        ...

    def keep_alive(self) -> None:
        """Send a comment that no client takes for an event."""
        ...
