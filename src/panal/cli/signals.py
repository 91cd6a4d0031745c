"""The signals that end a program in order, on every system."""

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
