"""The engine's side of being a child of the agent: settings by stdin, a ready line, no life of its own.

The parent keeps our stdin open. Its end means that the parent is gone, however it went, so that an
engine never outlives its agent. The key comes by stdin, since argument lists are seen by everybody.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import psutil

PR_SET_PDEATHSIG = 1
GREETING_BYTES_MAX = 64 * 1024


class Greeting(msgspec.Struct):
    """The first line of a child's stdin."""

    api_key: str


class Ready(msgspec.Struct):
    """The last line on a child's stdout that counts: it can serve."""

    port: int
    context_tokens: int = 0
    slots: int = 1
    note: str = ""


class Loading(msgspec.Struct):
    """Before it: how much of the model is there, from 0 to 1. As often as the engine likes."""

    loading: float


def read_greeting() -> Greeting:
    """Blocks until the parent has written it. Raises SystemExit when there is none."""
    line = sys.stdin.buffer.readline(GREETING_BYTES_MAX)
    try:
        return msgspec.json.decode(line, type=Greeting)
    except msgspec.DecodeError:
        raise SystemExit("this program is started by the panal agent") from None


def say_ready(ready: Ready | Loading) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(ready) + b"\n")
    sys.stdout.buffer.flush()


def die_with_parent() -> None:
    """Linux: ask the kernel to kill us when the parent dies. Elsewhere the end of stdin must do."""
    if sys.platform == "linux":
        library: Any = ctypes.CDLL(None, use_errno=True)
        library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def lower_priority(nice: int) -> None:
    """Give way to everything else on this machine: processor, then disk. 0 leaves it as it is.

    Linux weighs sessions against each other before it looks at priorities inside them, so the session's own
    weight is lowered too (sched(7), autogroup). What a system refuses is left as it is.
    """
    if not nice:
        return
    process = psutil.Process()
    if sys.platform == "win32":
        process.nice(psutil.IDLE_PRIORITY_CLASS)
        process.ionice(psutil.IOPRIO_VERYLOW)
        return
    os.nice(nice)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice), encoding="ascii")
        with contextlib.suppress(OSError, psutil.Error):
            process.ionice(psutil.IOPRIO_CLASS_IDLE)


def wait_for_parent_to_go() -> None:
    """Blocks until stdin ends. It reads below Python's own buffer, whose lock would delay our exit."""
    while os.read(0, 4096):
        pass


async def parent_gone() -> None:
    """The same for a program that runs an event loop. The thread that waits is a daemon."""
    loop = asyncio.get_running_loop()
    gone = loop.create_future()

    def tell() -> None:
        if not gone.done():
            gone.set_result(None)

    def wait() -> None:
        wait_for_parent_to_go()
        with contextlib.suppress(RuntimeError):  # the loop is closed: we are going anyway
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=wait, name="parent", daemon=True).start()
    await gone
