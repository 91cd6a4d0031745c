"""An X server without a screen, and a finger on its keyboard."""

import contextlib
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

PRESS_S_MAX = 5.0
START_S_MAX = 30.0


@dataclass(frozen=True)
class Display:
    name: str

    def press_key(self) -> None:
        """Raises subprocess.SubprocessError where the key could not be pressed within PRESS_S_MAX."""
        subprocess.run(
            ["xdotool", "key", "a"],
            env={**os.environ, "DISPLAY": self.name},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=PRESS_S_MAX,
        )


@contextlib.contextmanager
def display() -> Iterator[Display]:
    """A fresh X server. Skips with the reason where Xvfb or xdotool are missing."""
    for program in ("Xvfb", "xdotool"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: scripts/system-packages installs it")
    reading, writing = os.pipe()
    # Without -noreset the server begins anew when its last client leaves, and a key presser that
    # connects meanwhile may hang or be thrown out.
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(writing), "-noreset", "-screen", "0", "640x480x24", "-nolisten", "tcp"],
        pass_fds=(writing,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as said:
            ready, _, _ = select.select([said], [], [], START_S_MAX)
            number = said.readline().strip() if ready else ""
        assert number, "Xvfb did not start"
        yield Display(f":{number}")
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
