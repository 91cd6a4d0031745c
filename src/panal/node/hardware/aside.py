"""Calls that may hang (a disk of another machine, a driver) in a thread that nobody has to wait for."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class StillBusy(Exception):
    """The call before this one has not returned."""


class Aside(Generic[T]):
    """Runs ``function`` in a daemon thread, one call at a time: one that hangs costs one thread, not more,
    and does not hold up the end of the program. The function must be safe outside of the event loop."""

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self._function = function
        self._name = name
        self._busy = False

    async def call(self) -> T:
        """Its result or exception. Raises StillBusy. Cancelling leaves the thread to itself."""
        if self._busy:
            raise StillBusy(f"{self._name} does not answer")
        self._busy = True
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def tell(value: T | None, error: Exception | None) -> None:
            self._busy = False
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(value)  # type: ignore[arg-type]

        def work() -> None:
            value: T | None = None
            error: Exception | None = None
            try:
                value = self._function()
            except Exception as caught:  # noqa: BLE001 - handed to whoever awaits it
                error = caught
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
                loop.call_soon_threadsafe(tell, value, error)

        threading.Thread(target=work, name=self._name, daemon=True).start()
        return await done
