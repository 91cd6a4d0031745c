"""Input times for an agent that runs as a service and sees no session: a helper in each session tells them.

The helper writes one small file of its own into ``desk/sessions`` of the agent's home, when there was input
and each second; the agent believes files of the last FRESH_S only. The file holds the idle time and nothing
else. Made for Windows, whose services see no input; written from its documentation and not tried there.
"""

from pathlib import Path

import msgspec

from panal.core.clock import Clock
from panal.core.errors import SettingsError
from panal.core.private_files import write_private
from panal.node.hardware.idle import Idle, IdleSensor, Unknown

FRESH_S = 3.0
WRITE_EACH_S = 1.0
TOUCHED_S = 0.2
FILE_BYTES_MAX = 1024
HELPERS_MAX = 64


class Told(msgspec.Struct, kw_only=True):
    """What a helper last saw in its session."""

    version: int = 1
    utc_s: float
    idle_s: float


class Helper:
    """The session's side. Raises SettingsError where the file cannot be written."""

    def __init__(self, file: Path, sensor: IdleSensor, clock: Clock) -> None:
        self._file = file
        self._sensor = sensor
        self._clock = clock
        self._told_s = float("-inf")
        self._touched_s = 0.0

    def look(self) -> None:
        """One look, each quarter of a second. What is unknown is not told: the agent notices silence."""
        found = self._sensor.read()
        if isinstance(found, Unknown):
            return
        now_s = self._clock.monotonic_seconds()
        touched_s = now_s - found.seconds
        if touched_s - self._touched_s < TOUCHED_S and now_s - self._told_s < WRITE_EACH_S:
            return
        self._told_s, self._touched_s = now_s, touched_s
        told = Told(utc_s=self._clock.utc_seconds(), idle_s=found.seconds)
        write_private(self._file, msgspec.json.encode(told), durable=False)


class HelperIdle:
    """The agent's side, an IdleSensor: its own sensor where that sees something, else the helpers' files."""

    name = "helper in the session"

    def __init__(self, folder: Path, own: IdleSensor, clock: Clock) -> None:
        self._folder = folder
        self._own = own
        self._clock = clock

    def read(self) -> Idle | Unknown:
        own = self._own.read()
        if isinstance(own, Idle):
            return own
        now_s = self._clock.utc_seconds()
        told = [one for one in self._told() if abs(now_s - one.utc_s) <= FRESH_S and one.idle_s >= 0]
        if not told:
            return Unknown(f"{own.reason}, and no helper tells (panal desk helper)")
        return Idle(min(one.idle_s + max(0.0, now_s - one.utc_s) for one in told))

    def close(self) -> None:
        self._own.close()

    def _told(self) -> list[Told]:
        found = []
        try:
            for file in sorted(self._folder.glob("*.json"))[:HELPERS_MAX]:
                with file.open("rb") as stream:
                    found.append(msgspec.json.decode(stream.read(FILE_BYTES_MAX), type=Told))
        except (OSError, msgspec.DecodeError):
            return []  # a file that cannot be read may be the one of whoever is there
        return found


def helper_file(home: Path, session: str) -> Path:
    """Raises SettingsError for a name that is none."""
    if not session.isalnum() or len(session) > 40:
        raise SettingsError(f"'{session[:40]}' is no name of a session: use letters and digits.")
    return home / "desk" / "sessions" / f"{session}.json"
