"""Questions to a D-Bus daemon: connected when needed, again after a loss, never without a limit.

dbus-fast is loaded only where a bus is there, since it costs some megabytes.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from panal.core.clock import Clock
from panal.node.hardware.watcher import Blind

CONNECT_S_MAX = 0.8
ANSWER_S_MAX = 0.8
AGAIN_AFTER_S = 5.0
PROPERTIES = "org.freedesktop.DBus.Properties"

Heard = Callable[[str, list[Any]], None]
"""Gets a signal's member and body."""


def system_address(environment: Mapping[str, str]) -> str:
    return environment.get("DBUS_SYSTEM_BUS_ADDRESS") or "unix:path=/run/dbus/system_bus_socket"


def session_address(environment: Mapping[str, str]) -> str:
    """The bus of the agent's own user; an agent outside of a session finds it by its place."""
    given = environment.get("DBUS_SESSION_BUS_ADDRESS")
    if given:
        return given
    user = os.getuid() if hasattr(os, "getuid") else 0
    return f"unix:path=/run/user/{user}/bus"


class BusCalls:
    """One connection. ``name`` is for its problems' words. Everything raises Blind.

    ``descriptors``: answers may bring file descriptors, where the address is a local socket.
    """

    def __init__(self, name: str, address: str, clock: Clock, *, descriptors: bool = False) -> None:
        self._name = name
        self._address = address
        self._descriptors = descriptors and address.startswith("unix:")
        self._clock = clock
        self._bus: Any = None
        self._not_before_s = -inf
        self._connecting = asyncio.Lock()
        self._rules: list[tuple[str, Heard]] = []

    def hear(self, rule: str, heard: Heard) -> None:
        """Call ``heard`` for each signal that matches ``rule``'s interface, from the next connection on."""
        self._rules.append((rule, heard))

    async def ask(
        self, service: str, path: str, interface: str, member: str, signature: str = "", *body: Any
    ) -> list[Any]:
        """The answer's body."""
        return list((await self._answer(service, path, interface, member, signature, *body)).body)

    async def ask_descriptor(
        self, service: str, path: str, interface: str, member: str, signature: str = "", *body: Any
    ) -> int:
        """The one file descriptor that the answer brings; whoever asked closes it."""
        answer = await self._answer(service, path, interface, member, signature, *body)
        if len(answer.unix_fds) != 1:
            for each in answer.unix_fds:
                os.close(each)
            raise Blind(f"{service} gives no descriptor")
        return int(answer.unix_fds[0])

    @property
    def connected(self) -> bool:
        return self._bus is not None and bool(self._bus.connected)

    async def _answer(
        self, service: str, path: str, interface: str, member: str, signature: str, *body: Any
    ) -> Any:
        bus = await self._connected()
        from dbus_fast import Message, MessageType

        message = Message(
            destination=service, path=path, interface=interface, member=member, signature=signature,
            body=list(body),
        )  # fmt: skip
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                answer = await bus.call(message)
        except TimeoutError:
            raise Blind(f"{service} does not answer") from None
        except Exception as error:
            self.close()
            raise Blind(f"the {self._name} was lost: {type(error).__name__}") from error
        if answer is None or answer.message_type is MessageType.ERROR:
            raise Blind(
                f"{service} is not there" if answer is None else _complaint(service, answer.error_name)
            )
        return answer

    async def properties(self, service: str, path: str, interface: str) -> dict[str, Any]:
        (found,) = await self.ask(service, path, PROPERTIES, "GetAll", "s", interface)
        return {name: variant.value for name, variant in found.items()}

    def close(self) -> None:
        bus, self._bus = self._bus, None
        if bus is not None:
            bus.disconnect()

    async def _connected(self) -> Any:
        async with self._connecting:
            if self.connected:
                return self._bus
            self.close()
            now_s = self._clock.monotonic_seconds()
            if now_s < self._not_before_s:
                raise Blind(f"there is no {self._name}")
            self._not_before_s = now_s + AGAIN_AFTER_S
            path = self._address.partition("unix:path=")[2].split(",")[0]
            if path and not Path(path).exists():
                raise Blind(f"there is no {self._name}")
            self._bus = await self._connect()
            self._not_before_s = -inf
            return self._bus

    async def _connect(self) -> Any:
        from dbus_fast.aio import MessageBus

        try:
            bus = MessageBus(bus_address=self._address, negotiate_unix_fd=self._descriptors)
            async with asyncio.timeout(CONNECT_S_MAX):
                await bus.connect()
        except TimeoutError:
            raise Blind(f"the {self._name} does not answer") from None
        except Exception as error:
            raise Blind(f"the {self._name} cannot be reached: {type(error).__name__}") from error
        bus.add_message_handler(self._heard)
        for rule, _heard in self._rules:
            await self._match(bus, rule)
        return bus

    async def _match(self, bus: Any, interface: str) -> None:
        from dbus_fast import Message

        rule = f"type='signal',interface='{interface}'"
        message = Message(
            destination="org.freedesktop.DBus", path="/org/freedesktop/DBus",
            interface="org.freedesktop.DBus", member="AddMatch", signature="s", body=[rule],
        )  # fmt: skip
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await bus.call(message)
        except TimeoutError:
            raise Blind(f"the {self._name} does not answer") from None

    def _heard(self, message: Any) -> None:
        if message.interface is None or message.message_type.name != "SIGNAL":
            return
        for interface, heard in self._rules:
            if message.interface == interface:
                heard(message.member, list(message.body))


def _complaint(service: str, error_name: str | None) -> str:
    known = {
        "org.freedesktop.DBus.Error.ServiceUnknown": "is not there",
        "org.freedesktop.DBus.Error.NameHasNoOwner": "is not there",
        "org.freedesktop.DBus.Error.AccessDenied": "may not be asked",
    }
    return f"{service} {known.get(error_name or '', 'gives no answer')}"
