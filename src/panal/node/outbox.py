"""The way out of a node: events of attempts, numbered in frames, flushed once per turn of the loop.

Each attempt has a lane. At most UNACKNOWLEDGED_BYTES_MAX of its data are under way; the rest waits in
the lane, which is also how an attempt learns that it must not read its engine further.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from panal.core.errors import BusError, NodeError
from panal.core.ids import GatewayId
from panal.protocol.messages import MESSAGE_BYTES_MAX, UNACKNOWLEDGED_BYTES_MAX, Event, Frame

DATA_BYTES_MAX = 64 * 1024
"""Data of one event; longer data is cut into several events."""

MERGED_BYTES_MAX = 16 * 1024
EVENT_OVERHEAD_BYTES = 160
STALL_S_MAX = 30.0

SendFrames = Callable[[GatewayId, Sequence[Frame]], None]
"""Raises BusError when the message cannot be buffered now."""


class ReaderStalled(NodeError):
    """Nobody took a byte of this attempt for STALL_S_MAX."""

    code = "reader_stalled"


class Lane:
    """What one attempt still has to send, and how much of it is under way."""

    def __init__(self, outbox: "Outbox", attempt: str, gateway: GatewayId) -> None:
        self._outbox = outbox
        self.attempt = attempt
        self.gateway = gateway
        self.number = 0
        self.queue: deque[Event] = deque()
        self._queued_bytes = 0
        self._sent_bytes = 0
        self._acknowledged_bytes = 0
        self._progress: asyncio.Event | None = None

    def put(self, event: Event) -> None:
        """Send this event at the end of the current turn, or when there is room for its data."""
        for piece in _cut(event):
            self._queued_bytes += len(piece.data)
            if not (self.queue and merge(self.queue[-1], piece)):
                self.queue.append(piece)
        self._outbox.mark(self)

    def put_instead(self, event: Event) -> None:
        """Send this event and drop everything that waits before it."""
        self.queue.clear()
        self._queued_bytes = 0
        self.put(event)

    def drop(self) -> None:
        """Nothing more of this lane will be sent."""
        self.queue.clear()
        self._queued_bytes = 0
        self._note_progress()

    def acknowledge(self, data_bytes: int) -> None:
        """The gateway's client took all data up to this total."""
        if data_bytes <= self._acknowledged_bytes or data_bytes > self._sent_bytes:
            return
        self._acknowledged_bytes = data_bytes
        self._note_progress()
        if self.queue:
            self._outbox.mark(self)

    @property
    def full(self) -> bool:
        """Whether the attempt must not read its engine further."""
        return self._queued_bytes + self._sent_bytes - self._acknowledged_bytes >= UNACKNOWLEDGED_BYTES_MAX

    async def room(self) -> None:
        """Return when the lane is no longer full. Raises ReaderStalled."""
        while self.full:
            await self._wait_for_progress()

    async def empty(self) -> None:
        """Return when everything was handed to the bus. Raises ReaderStalled."""
        while self.queue:
            await self._wait_for_progress()

    async def _wait_for_progress(self) -> None:
        self._progress = asyncio.Event()
        try:
            async with asyncio.timeout(self._outbox.stall_s_max):
                await self._progress.wait()
        except TimeoutError as error:
            raise ReaderStalled(f"nobody took a byte for {self._outbox.stall_s_max:g} s") from error
        finally:
            self._progress = None

    def _note_progress(self) -> None:
        if self._progress is not None:
            self._progress.set()

    def sendable(self, bytes_max: int) -> tuple[list[Event], int]:
        """Events that may go now and about fit into ``bytes_max``, and their size. Takes nothing out."""
        events: list[Event] = []
        size = 0
        under_way = self._sent_bytes - self._acknowledged_bytes
        for event in self.queue:
            event_bytes = size_of(event)
            under_way += len(event.data)
            if under_way > UNACKNOWLEDGED_BYTES_MAX and event.data:
                break
            if events and size + event_bytes > bytes_max:
                break
            events.append(event)
            size += event_bytes
        return events, size

    def sent(self, events: int) -> None:
        """The first so many events went out in one frame."""
        self.number += 1
        for _ in range(events):
            data_bytes = len(self.queue.popleft().data)
            self._sent_bytes += data_bytes
            self._queued_bytes -= data_bytes
        self._note_progress()


class Outbox:
    """All lanes of a node. ``send`` is the bus's; a lane that could not send waits for ``flush``."""

    def __init__(self, send: SendFrames, *, stall_s_max: float = STALL_S_MAX) -> None:
        self._send = send
        self.stall_s_max = stall_s_max
        self._dirty: dict[Lane, None] = {}
        self._flush_planned = False

    def lane(self, attempt: str, gateway: GatewayId) -> Lane:
        return Lane(self, attempt, gateway)

    def mark(self, lane: Lane) -> None:
        """This lane has something to send; flush at the end of this turn of the loop."""
        self._dirty[lane] = None
        if not self._flush_planned:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send what may be sent: for each gateway one message, or several when they grow too large."""
        self._flush_planned = False
        by_gateway: dict[GatewayId, list[Lane]] = {}
        for lane in self._dirty:
            by_gateway.setdefault(lane.gateway, []).append(lane)
        self._dirty.clear()
        for gateway, lanes in by_gateway.items():
            try:
                self._send_all(gateway, lanes)
            except BusError:
                self._dirty.update(dict.fromkeys(lane for lane in lanes if lane.queue))

    def _send_all(self, gateway: GatewayId, lanes: list[Lane]) -> None:
        waiting = deque(lanes)
        while waiting:
            frames: list[Frame] = []
            taken: list[tuple[Lane, int]] = []
            room = MESSAGE_BYTES_MAX
            while waiting and (room > 0 or not frames):
                lane = waiting[0]
                events, size = lane.sendable(room)
                if frames and size > room:
                    break
                if events:
                    frames.append(Frame(attempt=lane.attempt, number=lane.number, events=events))
                    taken.append((lane, len(events)))
                    room -= size
                waiting.popleft()
                if events and len(events) < len(lane.queue):
                    waiting.append(lane)
                    break
            if not frames:
                return
            self._send(gateway, frames)
            for lane, events_sent in taken:
                lane.sent(events_sent)


def size_of(event: Event) -> int:
    """About how many bytes an event takes in a message."""
    size = EVENT_OVERHEAD_BYTES + len(event.data) + 3 * len(event.text)
    if event.token_ids is not None:
        size += 5 * len(event.token_ids)
    if event.error is not None:
        size += len(event.error.body) + len(event.error.message)
    return size


def _cut(event: Event) -> list[Event]:
    """An event with long data as several; the bookkeeping goes with the last, so that it is never early."""
    if len(event.data) <= DATA_BYTES_MAX:
        return [event]
    pieces: list[Event] = []
    data = event.data
    while len(data) > DATA_BYTES_MAX:
        pieces.append(Event(data=data[:DATA_BYTES_MAX], opaque=True))
        data = data[DATA_BYTES_MAX:]
    event.data = data
    return [*pieces, event]


def merge(earlier: Event, later: Event) -> bool:
    """Add ``later`` to ``earlier``, which was not sent yet. False where they must stay apart."""
    if earlier.last or earlier.leaving or later.leaving or later.error is not None:
        return False
    if size_of(earlier) + len(later.data) > MERGED_BYTES_MAX:
        return False
    if earlier.text or earlier.tokens:
        if later.text or later.tokens:
            known = earlier.token_ids is not None and later.token_ids is not None
            earlier.token_ids = earlier.token_ids + later.token_ids if known else None  # type: ignore[operator]
    else:
        earlier.token_ids = later.token_ids
    earlier.data += later.data
    earlier.text += later.text
    earlier.tokens += later.tokens
    earlier.role = earlier.role or later.role
    earlier.opaque = earlier.opaque or later.opaque
    earlier.finish = later.finish
    earlier.usage = later.usage or earlier.usage
    return True
