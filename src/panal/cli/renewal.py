"""A look at certificates once a day, and whenever somebody asks for it."""

import asyncio
from collections.abc import Callable

CHECK_EACH_S = 86_400.0


class Renewal:
    """Calls ``look``, which must not raise. The constructor starts nothing."""

    def __init__(self, look: Callable[[], None], *, each_s: float = CHECK_EACH_S) -> None:
        self._look = look
        self._each_s = each_s
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Look now."""
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._each_s):
                    await self._asked.wait()
            except TimeoutError:
                pass
            self._asked.clear()
            self._look()
