"""Spans on their way to a collector: a bounded queue and one thread of its own.

Whoever makes spans only appends them. A collector that is slow, away or refuses costs spans, which are
counted, and nothing else: no request waits for it, and neither does the end of the program.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from panal.telemetry.logs import fields
from panal.telemetry.traces import Span

QUEUE_SPANS_MAX = 8192
BATCH_SPANS_MAX = 512
PAUSE_S = 1.0
RETRY_PAUSES_S = (0.5, 2.0)
"""A batch is sent again after these pauses; then it is lost."""
CLOSE_S_MAX = 2.0

log = logging.getLogger("panal.traces")


class CollectorError(Exception):
    """The collector did not take a batch. ``again``: it may take it later."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


Send = Callable[[Sequence[Span]], int]
"""Sends a batch and gives the number of spans that the collector refused. Raises CollectorError."""


class SpanExport:
    """``put`` from one thread; nothing runs before ``start``."""

    def __init__(
        self,
        send: Send,
        *,
        queue_spans_max: int = QUEUE_SPANS_MAX,
        pause_s: float = PAUSE_S,
        retry_pauses_s: Sequence[float] = RETRY_PAUSES_S,
    ) -> None:
        self._send = send
        self._queue_spans_max = queue_spans_max
        self._pause_s = pause_s
        self._retry_pauses_s = retry_pauses_s
        self._queue: deque[Span] = deque()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._well = True
        self._crowded_out = 0
        self._unsent = 0
        self.sent = 0

    @property
    def lost(self) -> int:
        """Spans that no collector has: the queue was full, or they could not be sent."""
        return self._crowded_out + self._unsent

    def put(self, spans: Sequence[Span]) -> None:
        """Keep spans for sending. Never waits, never raises; what does not fit is lost."""
        room = self._queue_spans_max - len(self._queue)
        self._queue.extend(spans[: max(0, room)])
        if len(spans) > room:
            self._crowded_out += len(spans) - max(0, room)
        if len(self._queue) >= BATCH_SPANS_MAX:
            self._wake.set()

    def start(self) -> None:
        """Begin to send. The thread never keeps a program from ending."""
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def close(self, seconds: float = CLOSE_S_MAX) -> None:
        """Send what waits, for so long at most; the rest is lost."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(self._pause_s)
            self._wake.clear()
            self._send_all()
        self._send_all()
        self._unsent += len(self._queue)
        self._queue.clear()

    def _send_all(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(BATCH_SPANS_MAX, len(self._queue)))]
            if not self._delivered(batch):
                return

    def _delivered(self, batch: Sequence[Span]) -> bool:
        for pause_s in (*self._retry_pauses_s, None):
            try:
                refused = self._send(batch)
            except CollectorError as error:
                if error.again and pause_s is not None and not self._stop.wait(pause_s):
                    continue
                self._failed(len(batch), str(error))
                return False
            self.sent += len(batch) - refused
            self._unsent += refused
            if not self._well:
                self._well = True
                log.info("the collector of traces takes spans again", extra=fields(action="traces_back"))
            return True
        return False

    def _failed(self, spans: int, reason: str) -> None:
        self._unsent += spans
        if self._well:
            self._well = False
            log.warning("traces cannot be sent and are lost: %s", reason, extra=fields(action="traces_away"))
