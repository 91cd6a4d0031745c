"""Usage on its way to the store: this process's own spool, and those that others left behind."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from panal.cli.home import Home
from panal.core.clock import Clock
from panal.core.errors import SettingsError
from panal.store import Store
from panal.store.left_spools import LeftSpools
from panal.store.usage_spool import UsageSpool

TRIES = 60
EACH_S = 0.5
"""Another process may be draining the folder of one that was away; it lets go after a file."""


@dataclass(frozen=True, slots=True)
class Spools:
    own: UsageSpool
    left: LeftSpools

    @classmethod
    async def opened(
        cls, home: Home, number: int, clock: Clock, stack: AsyncExitStack, *, shared: bool
    ) -> "Spools":
        """Closed by ``stack``. Raises SettingsError when the own folder cannot be had."""
        own = UsageSpool(home.spool_of(number))
        for tries_left in range(TRIES if shared else 1, 0, -1):
            try:
                own.open()
                break
            except SettingsError:
                if tries_left == 1:
                    raise
                await asyncio.sleep(EACH_S)
        stack.callback(own.close)
        return cls(own, LeftSpools(home.spool, home.spool_of(number), clock))

    def background(self, store: Store) -> list[Any]:
        return [self.own.run(store), self.left.run(store)]
