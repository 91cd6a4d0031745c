"""A NATS client that stays: it finds its way back by itself and can change connections without loss."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from panal.bus.back_off import BACK_OFF_S_MAX, first_pause_s, pause_s
from panal.bus.connector import Server, Servers
from panal.bus.credentials import Login
from panal.bus.handover import HandOver
from panal.bus.nats_connection import PENDING_BYTES_MAX, NatsConnection
from panal.bus.nats_parser import Handler
from panal.core.errors import BusError, PanalError

CONNECT_TIMEOUT_S = 5.0
_HAND_OVER_TIMEOUT_S = 5.0
_LATECOMERS_S = 2.0
_CLOSE_TIMEOUT_S = 2.0
_RENEW_AGAIN_S = 5.0

_log = logging.getLogger(__name__)


class LinkEvents(Protocol):
    """What a client tells its owner, as plain calls from the event loop. They must not raise."""

    def on_connection(self, connected: bool) -> None: ...

    def on_refused(self, reason: str) -> None: ...

    def on_violation(self, text: str) -> None:
        """The server did not allow a publish or a subscription; the connection stays."""
        ...


class NatsClient:
    """Publishes at once, receives by direct call, reconnects for ever. The constructor starts nothing."""

    def __init__(
        self,
        servers: Servers,
        login: Login,
        *,
        name: str,
        randomness: Callable[[], float],
        renew_every_s: float | None = None,
    ) -> None:
        """``randomness`` gives floats in [0, 1). ``renew_every_s``: change to a connection with a fresh
        credential that often, for credentials that end."""
        self._servers = servers
        self._login = login
        self._name = name
        self._randomness = randomness
        self._renew_every_s = renew_every_s
        self._events: LinkEvents | None = None
        self._subjects: dict[bytes, bytes] = {}
        self._handlers: dict[bytes, Handler] = {}
        self._current: NatsConnection | None = None
        self._not_ended: set[NatsConnection] = set()
        self._held: list[bytes] | None = None
        self._held_bytes = 0
        self._next_server = 0
        self._failures = 0
        self._connected_at_s = float("-inf")
        self._last_failure = "it was not tried"
        self._last_error: PanalError | None = None
        self._change_due = False
        self._attention = asyncio.Event()
        self._hurry = asyncio.Event()
        self._connected = asyncio.Event()
        self._changing = asyncio.Lock()
        self._renew_timer: asyncio.TimerHandle | None = None
        self._supervisor: asyncio.Task[None] | None = None

    # --- use --------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether there is a connection whose server answers."""
        return self._current is not None and not self._current.silent

    def subscribe(self, subject: str, handler: Handler) -> bytes:
        """Hear a subject, now and after every reconnect; returns the subscription's id."""
        sid = str(len(self._subjects) + 1).encode()
        self._subjects[sid] = subject.encode()
        self._handlers[sid] = handler
        if self._current is not None:
            self._current.handlers[sid] = handler
            self._current.send(_sub(sid, self._subjects[sid]))
        return sid

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"") -> None:
        """Hand a message to the transport. Raises BusError when that is not possible now."""
        head = subject + b" " + reply if reply else subject
        data = b"PUB %s %d\r\n%s\r\n" % (head, len(payload), payload)
        if self._held is not None:
            self._hold(data)
        elif self._current is None:
            raise BusError("The bus is not connected.")
        else:
            self._current.send(data)

    async def start(self, events: LinkEvents, timeout_s: float) -> None:
        """Connect and subscribe. Raises BusError, caused by the last failure, when the time is over."""
        self._events = events
        self._supervisor = asyncio.create_task(self._supervise(), name=f"bus {self._name}")
        self._supervisor.add_done_callback(self._on_supervisor_done)
        try:
            await self._until_connected(timeout_s)
        except BaseException:
            await self.close()
            raise

    async def flush(self, timeout_s: float) -> None:
        """Wait until the server has handled what was published. Raises BusError."""
        if self._current is None:
            raise BusError("The bus is not connected.")
        await self._current.flush(timeout_s)

    async def replace(self, timeout_s: float) -> None:
        """Go over to a new connection with the login's present credential; nothing is lost or doubled.

        Raises BusError if that fails; the old connection, if there is one, then stays.
        """
        if self._current is None:
            self._hurry.set()
            await self._until_connected(timeout_s)
        async with self._changing:
            if self._current is None:
                raise BusError("The bus connection was lost again.")
            if self._current.credential != self._login.credential():
                await self._change(self._current, self._current.server, timeout_s)

    async def close(self) -> None:
        """Let what was published leave, then end. Sends nothing afterwards."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            await asyncio.wait([supervisor])
        if self._renew_timer is not None:
            self._renew_timer.cancel()
        current, self._current = self._current, None
        if current is not None:
            current.close()
        for connection in list(self._not_ended):
            await connection.wait_ended(_CLOSE_TIMEOUT_S)

    # --- what connections say ---------------------------------------------------------------------

    def on_ended(self, connection: NatsConnection) -> None:
        self._not_ended.discard(connection)
        if connection.refused:
            self._tell_refused(connection.end_reason)
        if connection is not self._current:
            return
        _log.info("bus connection %s ended: %s", self._name, connection.end_reason)
        self._last_failure = connection.end_reason
        self._current = None
        self._connected.clear()
        self._attention.set()
        if self._events is not None:
            self._events.on_connection(False)

    def on_lame_duck(self, connection: NatsConnection) -> None:
        if connection is self._current:
            self._ask_for_change()

    def on_silent(self, connection: NatsConnection) -> None:
        if connection is not self._current:
            return
        how = "does not answer" if connection.silent else "answers again"
        _log.info("bus connection %s: the server %s", self._name, how)
        if self._events is not None:
            self._events.on_connection(not connection.silent)

    def on_violation(self, text: str) -> None:
        _log.warning("bus: %s", text)
        if self._events is not None:
            self._events.on_violation(text)

    # --- staying connected ------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while True:
            async with self._changing:
                pass  # a change under way may bring a connection
            if self._current is None:
                await self._connect_again()
            while self._current is not None:
                await self._attention.wait()
                self._attention.clear()
                if self._current is not None and self._change_due:
                    self._change_due = False
                    await self._change_quietly(self._current)

    async def _connect_again(self) -> None:
        """Try every server in turn, ever more slowly, until one accepts."""
        held_s = asyncio.get_running_loop().time() - self._connected_at_s
        if held_s > BACK_OFF_S_MAX:
            self._failures = 0
        if held_s <= BACK_OFF_S_MAX:
            await self._back_off()  # a server that accepts and hangs up must not be hammered
        elif self._connected_at_s > float("-inf"):
            await self._pause(first_pause_s(self._randomness()))
        while True:
            server = self._servers.addresses[self._next_server % len(self._servers.addresses)]
            try:
                connection = await self._open(server, CONNECT_TIMEOUT_S, lambda: self._handlers)
                break
            except PanalError as error:
                self._last_failure, self._last_error = error.message, error
                _log.debug("bus connection %s: %s", self._name, error.message)
            self._next_server += 1
            await self._back_off()
        self._current = connection
        self._connected_at_s = asyncio.get_running_loop().time()
        self._connected.set()
        self._schedule_renewal()
        if self._events is not None:
            self._events.on_connection(True)

    async def _back_off(self) -> None:
        seconds = pause_s(self._failures, self._randomness())
        self._failures += 1
        await self._pause(seconds)

    async def _pause(self, seconds: float) -> None:
        """Wait, unless somebody is in a hurry."""
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            pass
        self._hurry.clear()

    async def _open(
        self, server: Server, timeout_s: float, handlers: Callable[[], dict[bytes, Handler]]
    ) -> NatsConnection:
        """Connect and subscribe: once this returns, the server misses nothing of what is for us.

        ``handlers`` is asked after the login. Raises BusError, and leaves nothing open.
        """
        connection = NatsConnection(self._login, self._name, self)
        self._not_ended.add(connection)
        try:
            await connection.open(self._servers, server, timeout_s)
            connection.handlers.update(handlers())
            if self._subjects:
                subscriptions = (_sub(sid, subject) for sid, subject in self._subjects.items())
                connection.send(b"".join(subscriptions))
                await connection.flush(timeout_s)
        except BaseException:
            connection.abort("given up")
            if not connection.was_made:
                self._not_ended.discard(connection)
            raise
        return connection

    async def _until_connected(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            raise BusError(f"The bus cannot be reached: {self._last_failure}") from self._last_error

    def _on_supervisor_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "the bus client failed and stays away", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def _tell_refused(self, reason: str) -> None:
        if self._events is not None:
            self._events.on_refused(reason)

    # --- changing connections ---------------------------------------------------------------------

    def _ask_for_change(self) -> None:
        self._change_due = True
        self._attention.set()

    def _schedule_renewal(self, after_s: float | None = None) -> None:
        if self._renew_timer is not None:
            self._renew_timer.cancel()
            self._renew_timer = None
        if self._renew_every_s is not None:
            loop = asyncio.get_running_loop()
            self._renew_timer = loop.call_later(after_s or self._renew_every_s, self._ask_for_change)

    async def _change_quietly(self, old: NatsConnection) -> None:
        addresses = self._servers.addresses
        others = [address for address in addresses if address != old.server]
        leaving = old.lame_duck
        if leaving and not others:
            return  # there is nowhere to go before the server hangs up
        server = others[int(self._randomness() * len(others))] if leaving else old.server
        try:
            async with self._changing:
                if old is self._current:
                    await self._change(old, server, CONNECT_TIMEOUT_S)
        except BusError as error:
            _log.warning("bus connection %s was not renewed: %s", self._name, error.message)
            self._schedule_renewal(_RENEW_AGAIN_S)

    async def _change(self, old: NatsConnection, server: Server | None, timeout_s: float) -> None:
        assert server is not None
        hand_over = HandOver(self._handlers, lambda: old.abort("too slow to leave"))

        def begin() -> dict[bytes, Handler]:
            old.handlers.update(hand_over.old_handlers())
            return hand_over.new_handlers()

        try:
            new = await self._open(server, timeout_s, begin)
        except BaseException:
            old.handlers.update({sid: self._handlers[sid] for sid in old.handlers})
            raise
        try:
            await self._leave(old)
        finally:
            self._take_over(new, hand_over)
            old.close()

    async def _leave(self, old: NatsConnection) -> None:
        """Hear and say on the old connection what is still under way; hold back what is published now."""
        self._held, self._held_bytes = [], 0
        try:
            old.send(b"".join(b"UNSUB %s\r\n" % sid for sid in self._subjects))
            await old.flush(_HAND_OVER_TIMEOUT_S)
        except BusError as error:
            _log.info("old bus connection %s was lost before its end: %s", self._name, error.message)

    def _take_over(self, new: NatsConnection, hand_over: HandOver) -> None:
        held, self._held = self._held or [], None
        was_connected = self.connected
        if not new.alive:
            return
        self._current = new
        if held:
            new.send(b"".join(held))
        hand_over.finish()
        loop = asyncio.get_running_loop()
        self._connected_at_s = loop.time()
        loop.call_later(_LATECOMERS_S, self._settle, new, hand_over)
        self._schedule_renewal()
        if not was_connected:
            self._connected.set()
            if self._events is not None:
                self._events.on_connection(True)

    def _settle(self, connection: NatsConnection, hand_over: HandOver) -> None:
        hand_over.forget()
        if connection is self._current and not self._changing.locked():
            connection.handlers.update(self._handlers)

    def _hold(self, data: bytes) -> None:
        assert self._held is not None
        if self._held_bytes + len(data) > PENDING_BYTES_MAX:
            raise BusError("Too much is waiting to be sent to the bus.")
        self._held.append(data)
        self._held_bytes += len(data)


def _sub(sid: bytes, subject: bytes) -> bytes:
    return b"SUB %s %s\r\n" % (subject, sid)
