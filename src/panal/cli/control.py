"""The controller of a gateway process and the lease by which one of them acts."""

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from panal.bus.seam import ControllerBus
from panal.controller.controller import Controller
from panal.controller.leadership import Leadership
from panal.core.clock import Clock
from panal.core.errors import StoreError
from panal.core.ids import GatewayId, IdSource
from panal.identity.seams import CredentialIssuer
from panal.store import Store
from panal.telemetry.logs import fields

log = logging.getLogger("panal.controller")


@dataclass(frozen=True, slots=True)
class Control:
    leadership: Leadership
    controller: Controller

    @classmethod
    async def started(
        cls,
        bus: ControllerBus,
        store: Store,
        issuer: CredentialIssuer,
        clock: Clock,
        ids: IdSource,
        credential_s: float,
        holder: GatewayId,
        stack: AsyncExitStack,
    ) -> "Control":
        """It has the lease if that was free, and hears the fleet. Raises StoreError, BusError."""
        leadership = Leadership(store, holder, clock)
        controller = Controller(bus, store, issuer, clock, ids, credential_s, leadership)
        await leadership.look()
        await controller.refresh()
        await bus.start(controller)
        stack.push_async_callback(bus.close)
        return cls(leadership, controller)

    def changed(self) -> None:
        """Nodes or keys changed in the store, through this process."""
        self.controller.changed()

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
