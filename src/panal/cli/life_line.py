"""Children that cannot outlive their parent: the parent holds a pipe, its end is noticed on every system.

On Linux the kernel also kills the child when its parent dies, which covers a child that hangs.
"""

import asyncio
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


async def until_parent_is_gone(stopped: asyncio.Event) -> None:
    """Set ``stopped`` when the standard input, a pipe that the parent holds, comes to its end."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    class EndOfPipe(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
            if not ended.done():
                ended.set_result(None)

    transport, _protocol = await loop.connect_read_pipe(EndOfPipe, sys.stdin)
    try:
        await ended
        stopped.set()
    finally:
        transport.close()


def die_with_parent() -> None:
    """Ask the kernel (Linux) to end this process when its parent does."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
