"""An X server without a screen, and a finger on its keyboard."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Display:
    name: str

    def press_key(self) -> None:
        subprocess.run(
            ["xdotool", "key", "a"], env={**os.environ, "DISPLAY": self.name}, check=True, timeout=10
        )


@contextlib.contextmanager
def display() -> Iterator[Display]:
    """A fresh X server. Skips with the reason where Xvfb or xdotool are missing."""
    for program in ("Xvfb", "xdotool"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: scripts/system-packages installs it")
    reading, writing = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(writing), "-screen", "0", "640x480x24", "-nolisten", "tcp"],
        pass_fds=(writing,),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as said:
            number = said.readline().strip()
        assert number, "Xvfb did not start"
        yield Display(f":{number}")
    finally:
        server.terminate()
        server.wait(10)
