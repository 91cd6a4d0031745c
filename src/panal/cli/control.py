"""The controller of a gateway process and the lease by which one of them acts."""

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from panal.bus.seam import ControllerBus
from panal.controller.controller import Controller
from panal.controller.leadership import Leadership
from panal.core.errors import StoreError
from panal.telemetry.logs import fields

log = logging.getLogger("panal.controller")


@dataclass(frozen=True, slots=True)
class Control:
    leadership: Leadership
    controller: Controller

    async def start(self, bus: ControllerBus, stack: AsyncExitStack) -> None:
        """Take the lease if it is free, and hear the fleet. Raises StoreError, BusError."""
        await self.leadership.look()
        await self.controller.refresh()
        await bus.start(self.controller)
        stack.push_async_callback(bus.close)

    def leads(self) -> bool:
        return self.leadership.term() is not None

    def background(self) -> list[Any]:
        return [self.leadership.run(), self.controller.run()]

    async def give_back(self) -> None:
        """At the end: another may lead at once. Where the store is away, others wait for the lease's end."""
        try:
            await self.leadership.give_back()
        except StoreError as error:
            log.info("the lease runs out: %s", error.message, extra=fields(action="lease_kept"))
