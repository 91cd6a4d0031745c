"""The three sides of the bus over links: which subject carries what, and messages to handlers.

A message that is not the protocol is counted and logged without its content; it never raises.
"""

import logging
from collections.abc import Callable, Sequence

from panal.bus.links import NOBODY_HEARS, Link, LinkPair
from panal.bus.nats_parser import Handler
from panal.bus.seam import ControllerHandlers, GatewayHandlers, NodeHandlers
from panal.core.errors import BusError, ProtocolError
from panal.core.ids import GatewayId, NodeKey
from panal.protocol import subjects
from panal.protocol.codec import Decoder, M, encode
from panal.protocol.messages import (
    Acknowledge,
    BodyPart,
    Cancel,
    Frame,
    Frames,
    Heartbeat,
    Instruction,
    Present,
    Report,
    RunAttempt,
)

START_TIMEOUT_S = 10.0
RENEW_TIMEOUT_S = 5.0
_KEYS_MAX = 65_536
_LOG_EVERY = 1000

_log = logging.getLogger(__name__)


class BadMessages:
    """Counts what could not be decoded; logs the first and every thousandth."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, subject: bytes, size_bytes: int) -> None:
        if self.count % _LOG_EVERY == 0:
            _log.warning("bad message of %d bytes on %s (%d so far)", size_bytes, subject, self.count + 1)
        self.count += 1


class _DownSubjects:
    """Subjects to nodes as bytes, made once for each node and verb."""

    def __init__(self) -> None:
        self._known: dict[tuple[NodeKey, str], bytes] = {}

    def get(self, key: NodeKey, verb: str) -> bytes:
        subject = self._known.get((key, verb))
        if subject is None:
            if len(self._known) >= _KEYS_MAX:
                self._known.clear()
            subject = self._known[key, verb] = subjects.down(key, verb).encode()
        return subject


def _from_node(kind: type[M], deliver: Callable[[NodeKey, M], None], bad: BadMessages) -> Handler:
    decode = Decoder(kind).decode

    def receive(subject: bytes, payload: bytes) -> None:
        try:
            key = subjects.key_of(subject.decode("ascii"))
            message = decode(payload)
        except (ProtocolError, UnicodeDecodeError):
            bad.add(subject, len(payload))
            return
        deliver(key, message)

    return receive


class GatewaySide:
    """A gateway: runs attempts, hears their frames and all heartbeats. Implements seam.GatewayBus."""

    def __init__(self, gateway: GatewayId, data: Link, news: Link) -> None:
        self.gateway = gateway
        self._links = LinkPair(data, news)
        self._publish = data.publish
        self._subjects = _DownSubjects()
        self._absent_subjects: dict[NodeKey, bytes] = {}
        self._handlers: GatewayHandlers | None = None
        self._bad = BadMessages()

    @property
    def connected(self) -> bool:
        return self._links.connected

    @property
    def bad_messages(self) -> int:
        return self._bad.count

    async def start(self, handlers: GatewayHandlers) -> None:
        self._handlers = handlers
        on_frames = handlers.on_frames
        self._links.data.subscribe(
            subjects.frames_for(self.gateway),
            _from_node(Frames, lambda key, message: on_frames(key, message.frames), self._bad),
        )
        self._links.data.subscribe(subjects.absent_for(self.gateway), self._on_status)
        news = self._links.news
        news.subscribe(subjects.ALL_HEARTBEATS, _from_node(Heartbeat, handlers.on_heartbeat, self._bad))
        news.subscribe(subjects.FLEET_CHANGED, lambda _subject, _payload: handlers.on_fleet_changed())
        await self._links.start(self, START_TIMEOUT_S)

    def run(self, key: NodeKey, attempt: RunAttempt, parts: Sequence[BodyPart] = ()) -> None:
        self._publish(self._subjects.get(key, subjects.RUN), encode(attempt), self._absent_subject(key))
        for part in parts:
            self._publish(self._subjects.get(key, subjects.PART), encode(part))

    def acknowledge(self, key: NodeKey, acknowledgement: Acknowledge) -> None:
        self._publish(self._subjects.get(key, subjects.ACKNOWLEDGE), encode(acknowledgement))

    def cancel(self, key: NodeKey, cancel: Cancel) -> None:
        self._publish(self._subjects.get(key, subjects.CANCEL), encode(cancel))

    def probe(self, key: NodeKey) -> None:
        try:
            self._publish(self._subjects.get(key, subjects.PROBE), b"", self._absent_subject(key))
        except BusError:
            return  # nothing can be known now; silence is watched beside this

    def present(self, key: NodeKey, present: Present) -> None:
        self._publish(self._subjects.get(key, subjects.PRESENT), encode(present))

    async def flush(self, timeout_s: float) -> None:
        await self._links.flush(timeout_s)

    async def close(self) -> None:
        await self._links.close()

    def on_connection(self, connected: bool) -> None:
        assert self._handlers is not None
        self._handlers.on_connection(connected)

    def _absent_subject(self, key: NodeKey) -> bytes:
        subject = self._absent_subjects.get(key)
        if subject is None:
            if len(self._absent_subjects) >= _KEYS_MAX:
                self._absent_subjects.clear()
            subject = self._absent_subjects[key] = subjects.absent(key, self.gateway).encode()
        return subject

    def _on_status(self, subject: bytes, payload: bytes) -> None:
        assert self._handlers is not None
        if not payload.startswith(NOBODY_HEARS):
            self._bad.add(subject, len(payload))
            return
        try:
            key = subjects.absent_key_of(subject.decode("ascii"))
        except (ProtocolError, UnicodeDecodeError):
            self._bad.add(subject, len(payload))
            return
        self._handlers.on_absent(key)

    def on_refused(self, reason: str) -> None:
        _log.error("the bus refuses the gateway %s: %s", self.gateway, reason)

    def on_violation(self, text: str) -> None:
        _log.error("the gateway %s may not: %s", self.gateway, text)


class ControllerSide:
    """The controller: instructs nodes, hears heartbeats and reports. Implements seam.ControllerBus."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._subjects = _DownSubjects()
        self._changes = 0
        self._bad = BadMessages()

    @property
    def bad_messages(self) -> int:
        return self._bad.count

    async def start(self, handlers: ControllerHandlers) -> None:
        self._link.subscribe(subjects.ALL_HEARTBEATS, _from_node(Heartbeat, handlers.on_heartbeat, self._bad))
        self._link.subscribe(subjects.ALL_REPORTS, _from_node(Report, handlers.on_report, self._bad))
        await self._link.start(self, START_TIMEOUT_S)

    def instruct(self, key: NodeKey, instruction: Instruction) -> None:
        self._link.publish(self._subjects.get(key, subjects.INSTRUCT), encode(instruction))

    def fleet_changed(self) -> None:
        self._link.publish(subjects.FLEET_CHANGED.encode(), b"")

    async def close(self) -> None:
        await self._link.close()

    def on_connection(self, connected: bool) -> None:
        _log.info("the controller is %s the bus", "on" if connected else "off")

    def on_refused(self, reason: str) -> None:
        _log.error("the bus refuses the controller: %s", reason)

    def on_violation(self, text: str) -> None:
        _log.error("the controller may not: %s", text)


class NodeSide:
    """A node: takes attempts and instructions, sends frames, heartbeats, reports. Implements seam.NodeBus."""

    def __init__(
        self, key: NodeKey, data: Link, news: Link, accept_credential: Callable[[str], None]
    ) -> None:
        """``accept_credential``: keeps a fresh credential for the links' next connect."""
        self.key = key
        self._links = LinkPair(data, news)
        self._accept_credential = accept_credential
        self._handlers: NodeHandlers | None = None
        self._bad = BadMessages()
        self._frames_subjects: dict[GatewayId, bytes] = {}
        self._heartbeat_subject = subjects.heartbeat(key).encode()
        self._report_subject = subjects.report(key).encode()

    @property
    def connected(self) -> bool:
        return self._links.connected

    @property
    def bad_messages(self) -> int:
        return self._bad.count

    async def start(self, handlers: NodeHandlers) -> None:
        self._handlers = handlers
        verbs: dict[bytes, Callable[[bytes], None]] = {
            subjects.RUN.encode(): _delivery(RunAttempt, handlers.on_run),
            subjects.PART.encode(): _delivery(BodyPart, handlers.on_part),
            subjects.ACKNOWLEDGE.encode(): _delivery(Acknowledge, handlers.on_acknowledge),
            subjects.CANCEL.encode(): _delivery(Cancel, handlers.on_cancel),
            subjects.PRESENT.encode(): _delivery(Present, handlers.on_present),
            subjects.INSTRUCT.encode(): _delivery(Instruction, handlers.on_instruction),
        }

        def receive(subject: bytes, payload: bytes) -> None:
            deliver = verbs.get(subject.rpartition(b".")[2])
            if deliver is None:
                return  # a later version's verb
            try:
                deliver(payload)
            except ProtocolError:
                self._bad.add(subject, len(payload))

        self._links.data.subscribe(subjects.down_all(self.key), receive)
        await self._links.start(self, START_TIMEOUT_S)

    def send_frames(self, gateway: GatewayId, frames: Sequence[Frame]) -> None:
        """Raises BusError, or ProtocolError for a single frame that is too large."""
        subject = self._frames_subjects.get(gateway)
        if subject is None:
            if len(self._frames_subjects) >= _KEYS_MAX:
                self._frames_subjects.clear()
            subject = self._frames_subjects[gateway] = subjects.frames(self.key, gateway).encode()
        try:
            payload = encode(Frames(frames=list(frames)))
        except ProtocolError:
            if len(frames) < 2:
                raise
            half = len(frames) // 2
            self.send_frames(gateway, frames[:half])
            self.send_frames(gateway, frames[half:])
            return
        self._links.data.publish(subject, payload)

    def heartbeat(self, heartbeat: Heartbeat) -> None:
        self._links.news.publish(self._heartbeat_subject, encode(heartbeat))

    def report(self, report: Report) -> None:
        self._links.news.publish(self._report_subject, encode(report))

    async def answers(self, timeout_s: float) -> bool:
        try:
            await self._links.data.flush(timeout_s)
        except BusError:
            return False
        return True

    async def renew(self, credential: str) -> None:
        """Raises BusError if no connection with it comes about in time; the old ones then stay."""
        self._accept_credential(credential)
        await self._links.replace(RENEW_TIMEOUT_S)

    async def close(self) -> None:
        await self._links.close()

    def on_connection(self, connected: bool) -> None:
        assert self._handlers is not None
        self._handlers.on_connection(connected)

    def on_refused(self, reason: str) -> None:
        assert self._handlers is not None
        self._handlers.on_refused(reason)

    def on_violation(self, text: str) -> None:
        _log.error("this node may not: %s", text)


def _delivery(kind: type[M], deliver: Callable[[M], None]) -> Callable[[bytes], None]:
    decode = Decoder(kind).decode

    def receive(payload: bytes) -> None:
        message: M = decode(payload)
        deliver(message)

    return receive
