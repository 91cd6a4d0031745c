"""What an agent costs its owner while it rests: processor and memory over a minute, all its sensors at work.

    python bench/agent_rest.py [--seconds 60]

A gateway and one desktop-class node on hosts of their own, with an X server and, where dbusmock is installed,
a mocked logind and UPower. Measured twice: while the owner uses the machine, and while the node is free with
its engine loaded (a process of its own, not counted). Nothing is asserted.
"""

import argparse
import contextlib
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.dbus_mocks import mocked_bus
from tests.support.desks import Desk, office
from tests.support.installation import short_folder

CPU_BAR_SHARE, MEMORY_BAR_MB = 0.01, 80.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(short_folder())
        owner = {"PANAL_OWNER__COOLDOWN_S": "5", "PANAL_OWNER__PROGRAMS": "some-game,some-cad"}
        try:
            bus = stack.enter_context(mocked_bus())
            bus.logind()
            bus.upower()
            owner |= bus.environment
            sensors = "X11, logind, UPower, terminals, named programs, disk"
        except pytest.skip.Exception as skipped:
            sensors = f"X11, terminals, named programs, disk ({skipped})"
        place = stack.enter_context(office(folder, "echo", desk_count=1, owner=owner))
        desk = place.desks[0]
        print(f"sensors: {sensors}; {psutil.cpu_count()} cores")
        measured("free, engine loaded", desk, seconds, touch=False)
        measured("in use by its owner", desk, seconds, touch=True)
    print(f"bars: {CPU_BAR_SHARE:.0%} of a core, {MEMORY_BAR_MB:g} MB")


def measured(what: str, desk: Desk, seconds: float, *, touch: bool) -> None:
    """One window of the agent's process. ``touch``: a key each half second."""
    process, failed = desk.agent_process(), 0
    if touch:
        desk.screen.press_key()
        time.sleep(5.0)
    before, begun_s = process.cpu_times(), time.monotonic()
    while time.monotonic() - begun_s < seconds:
        if touch:
            try:
                desk.screen.press_key()
            except subprocess.SubprocessError:
                failed += 1
        time.sleep(0.5)
    after, passed_s = process.cpu_times(), time.monotonic() - begun_s
    used_s = after.user + after.system - before.user - before.system
    memory = process.memory_full_info()
    print(
        f"{what}: {used_s / passed_s:.2%} of a core, {memory.rss / 1e6:.1f} MB resident "
        f"({memory.uss / 1e6:.1f} MB its own), {process.num_threads()} threads"
        + (f"; {failed} keys could not be pressed" if failed else ""),
        flush=True,
    )


if __name__ == "__main__":
    main()
