"""``panal gateway --processes N``: the gateway processes of a host that runs nothing else of panal."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console

from panal.cli.addresses import addresses_of
from panal.cli.gateways import Gateways
from panal.cli.home import Home
from panal.cli.patience import unless
from panal.cli.signals import on_end_signals, on_reload_signal
from panal.cli.supervision import Supervision
from panal.core.clock import SystemClock
from panal.core.errors import SettingsError
from panal.core.settings import Settings
from panal.store.folder_lock import FolderLock


async def serve(
    home: Home, settings: Settings, config: Path | None, environment: Mapping[str, str], console: Console
) -> None:
    """Until a signal, or until the last process was given up. Raises SettingsError.

    What the first process makes at an installation's first start it says on the screen, as ``up`` does.
    """
    stopped = asyncio.Event()
    on_end_signals(stopped.set)
    home.make()
    lock = FolderLock(home.path)
    try:
        lock.take()
    except SettingsError as error:
        raise SettingsError(
            f"panal already runs in {home.path}. Stop it first, or give another --home."
        ) from error
    arguments = ["--home", str(home.path), *(["--config", str(config)] if config else [])]

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    gateways = Gateways(home, settings, arguments, environment, say)
    on_reload_signal(gateways.reload, stopped.set)

    async with AsyncExitStack() as stack:
        stack.callback(lock.release)
        gateways.reserve(addresses_of(settings), stack)
        stack.push_async_callback(gateways.stop)
        if gateways.problem:
            say(gateways.problem)
        said = await unless(stopped, gateways.start_first())
        if said is None:
            return
        if key := said.get("first_keys", {}).get("user", ""):
            say(f"API key    {key}   (shown once; 'panal keys create' makes more)")
        await unless(stopped, gateways.start_others())
        if stopped.is_set():
            return
        say(f"{gateways.count} gateway processes run (supervisor {os.getpid()}).")
        given_up = await Supervision(gateways.parts(), SystemClock(), say).run(stopped)
    if given_up:
        raise SettingsError(given_up)
