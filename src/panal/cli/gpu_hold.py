"""Holds so much memory of one GPU until its standard input ends: what an engine does, without a model.

Started by ``make gpu-check`` in an engine's place (node/engines/child.py). It asks the CUDA driver through
ctypes, so that no library is needed; with ``--main-memory`` it holds this machine's memory, for the stand-in.
"""

import argparse
import ctypes
import sys
from collections.abc import Callable
from typing import Any

from panal.node.engines.child import (
    Ready,
    die_with_parent,
    read_greeting,
    say_ready,
    wait_for_parent_to_go,
)


def hold_on_gpu(size_bytes: int) -> Any:
    """The memory, on the first GPU that this process sees. Raises SystemExit with the driver's code."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        cuda = ctypes.CDLL(name)
    except OSError as error:
        raise SystemExit(f"the CUDA driver {name} cannot be loaded") from error
    device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    calls: tuple[Callable[[], Any], ...] = (
        lambda: cuda.cuInit(0),
        lambda: cuda.cuDeviceGet(ctypes.byref(device), 0),
        lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        lambda: cuda.cuCtxSetCurrent(context),
        lambda: cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size_bytes)),
        lambda: cuda.cuMemsetD8_v2(address, ctypes.c_ubyte(1), ctypes.c_size_t(size_bytes)),
        cuda.cuCtxSynchronize,
    )
    for number, call in enumerate(calls):
        code = call()
        if code != 0:
            raise SystemExit(f"the CUDA driver refuses step {number + 1} with code {code}")
    return address


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="gpu_hold")
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--main-memory", action="store_true")
    given = parser.parse_args()
    die_with_parent()
    read_greeting()
    held = bytearray(b"\1") * given.bytes if given.main_memory else hold_on_gpu(given.bytes)
    say_ready(Ready(port=1))
    wait_for_parent_to_go()
    del held


if __name__ == "__main__":
    main()
