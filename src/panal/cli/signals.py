"""The signals that end a program in order, on every system, and the one that makes it look again."""

import asyncio
import signal
import sys
from collections.abc import Callable


def on_end_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` in the running event loop on Ctrl-C or when the system asks the program to end."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        if sys.platform == "win32":
            signal.signal(number, lambda _number, _frame: loop.call_soon_threadsafe(stop))
        else:
            loop.add_signal_handler(number, stop)


def on_reload_signal(look: Callable[[], None], stop: Callable[[], None]) -> None:
    """Call ``look`` in the running event loop on SIGHUP; Windows has no such signal.

    In a terminal the signal says that the terminal is gone: then ``stop`` is called.
    """
    if sys.platform != "win32":
        in_terminal = sys.stdin is not None and sys.stdin.isatty()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, stop if in_terminal else look)
