"""The gateway processes of one host, as their supervisor has them: one, or several that share its ports."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from panal.cli.addresses import Addresses
from panal.cli.children import Child
from panal.cli.home import Home
from panal.cli.supervision import Part, part_of
from panal.core.settings import Settings
from panal.gateway.sockets import SHARED, reserved
from panal.telemetry.exchange import forget_counts

GATEWAY_STOP_S = 15.0
NOT_SHARED = (
    "This system does not spread connections over processes that share a port, so one gateway process runs "
    "instead of {wanted}."
)


def processes_of(settings: Settings) -> int:
    """How many gateway processes run here; one where the platform cannot share a port."""
    return settings.gateway.processes if SHARED else 1


class Gateways:
    """``arguments`` follow ``panal gateway --process N``: those of home and settings file.

    ``notice`` is told in words that a process waits.
    """

    def __init__(
        self,
        home: Home,
        settings: Settings,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        notice: Callable[[str], None],
    ) -> None:
        self._home = home
        self._settings = settings
        self.count = processes_of(settings)
        self._children = [
            Child(
                "gateway" if self.count == 1 else f"gateway process {number}",
                ["gateway", "--watch-parent", "--process", str(number), *arguments],
                environment,
                notice,
            )
            for number in range(1, self.count + 1)
        ]

    @property
    def problem(self) -> str:
        """Why fewer run than were asked for; empty when all do."""
        wanted = self._settings.gateway.processes
        return NOT_SHARED.format(wanted=wanted) if wanted > self.count else ""

    def reserve(self, addresses: Addresses, stack: AsyncExitStack) -> None:
        """Take the ports before anything is made. Raises SettingsError when one is in use.

        One process takes its ports itself. Several must not find a stranger on theirs when one of them
        comes back, so the supervisor holds them.
        """
        if self.count > 1:
            gateway = self._settings.gateway
            stack.enter_context(reserved(gateway.http_host, gateway.http_port))
            stack.enter_context(reserved(addresses.listen_host, gateway.https_port))

    async def start_first(self) -> dict[str, dict[str, Any]]:
        """The first alone: it makes what is made once (keys, certificates, tables); what it said.

        Takes as long as store or bus are away.

        Raises SettingsError.
        """
        forget_counts(self._home.metrics)
        await self._children[0].start()
        return await self._children[0].until("ready")

    async def start_others(self) -> None:
        """All others at the same time. Raises SettingsError."""

        async def start(child: Child) -> None:
            await child.start()
            await child.until("ready")

        failures = [
            failure
            for failure in await asyncio.gather(
                *(start(child) for child in self._children[1:]), return_exceptions=True
            )
            if failure is not None
        ]
        if failures:
            raise failures[0]

    def parts(self) -> list[Part]:
        """To be kept running. Without the last of them nothing works."""
        return [part_of(child, "ready", needed=True, kind="gateway") for child in self._children]

    def reload(self) -> None:
        for child in self._children:
            child.reload()

    async def stop(self) -> None:
        """All at the same time: new requests are refused by none before the others."""
        await asyncio.gather(*(child.stop(GATEWAY_STOP_S) for child in self._children))
