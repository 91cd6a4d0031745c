"""A start that waits for a store or bus that is away, and ends at once where waiting is in vain."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from panal.bus.back_off import pause_s
from panal.bus.nats_connection import Refused
from panal.cli.front import Vestibule
from panal.core.errors import BusError, SettingsError, StoreError
from panal.telemetry.logs import fields

PAUSE_S_MAX = 5.0
"""Many hosts that boot with their database must not come at it as one: the upper half is drawn."""

log = logging.getLogger("panal.gateway")

T = TypeVar("T")


async def when_there(
    build: Callable[[AsyncExitStack], Awaitable[T]],
    stack: AsyncExitStack,
    vestibule: Vestibule,
    tell: Callable[[str], None],
    randomness: Callable[[], float],
) -> T:
    """What ``build`` makes; it is called again, ever more slowly, while it raises StoreError or BusError.

    What a failed try opened is closed before the next; what the last one opened is closed by ``stack``.
    ``tell`` gets a sentence when the waiting begins, and when something else is waited for. Raises
    SettingsError for what no waiting changes.
    """
    failures, told = 0, ""
    while True:
        try:
            async with AsyncExitStack() as attempt:
                made = await build(attempt)
                await vestibule.close()
                stack.push_async_callback(attempt.pop_all().aclose)
                return made
        except (StoreError, BusError) as error:
            if isinstance(error, BusError):
                _refuse_strangers(error)
            if error.code != told:
                told = error.code
                tell(f"It waits until the {_what(error)} is there. {error.message}")
                log.warning("the start waits: %s", error.message, extra=fields(action="start_waits"))
            error.retry_after_s = round(PAUSE_S_MAX)
            await vestibule.open(error)
        await asyncio.sleep(pause_s(failures, randomness(), PAUSE_S_MAX))
        failures += 1


async def unless(stopped: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What ``work`` gives; None, and it is cancelled, when ``stopped`` comes first."""
    working = asyncio.get_running_loop().create_task(work)
    stopping = asyncio.get_running_loop().create_task(stopped.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def _what(error: StoreError | BusError) -> str:
    return "store" if isinstance(error, StoreError) else "bus"


def _refuse_strangers(error: BusError) -> None:
    """Raises SettingsError when the bus is another installation's, or takes us for a stranger."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError | Refused):
            raise SettingsError(
                f"{error.message} Either this home has not the installation's secrets (bring them by "
                "'panal host import'), or the address or this machine's clock is wrong."
            ) from error
        cause = cause.__cause__
