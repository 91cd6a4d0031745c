"""What a service is, and what installing it means: files and commands, as values. Nothing is done here."""

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

What = Literal["agent", "up"]
Scope = Literal["user", "system"]

DESCRIPTIONS: dict[What, str] = {
    "agent": "panal agent: this machine as a node",
    "up": "panal: bus, gateway, controller and a node",
}
STOP_S = 45
"""More than the programs' own way down takes: answers are handed over and the engine is ended first."""
RESTART_FIRST_S = 2
RESTART_LAST_S = 120


@dataclass(frozen=True, slots=True)
class Service:
    """One service. ``python`` runs ``-m panal``; ``home`` is the installation's folder.

    ``account`` is the user that a system service runs as; ``on_desktop``: it must see its owner's input.
    Paths are of the system it is for. ``environment`` holds no secrets: units can be read by others.
    """

    what: What
    scope: Scope
    python: PurePath
    home: PurePath
    arguments: tuple[str, ...] = ()
    account: str = "panal"
    environment: tuple[tuple[str, str], ...] = ()
    on_desktop: bool = False

    @property
    def name(self) -> str:
        return f"panal-{self.what}"

    @property
    def folder(self) -> PurePath:
        """What ``--home`` is for this program: a node keeps to its own part of the home."""
        return self.home / "agent" if self.what == "agent" else self.home

    def command(self) -> list[str]:
        """The program and its words."""
        return [str(self.python), "-m", "panal", self.what, "--home", str(self.folder), *self.arguments]


@dataclass(frozen=True, slots=True)
class Step:
    """A command to run. ``optional``: its failure changes nothing."""

    command: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Files to write, then commands, in order; ``removes`` are files to remove, after the commands.

    ``notes`` are sentences for a person, such as what the system still needs.
    """

    files: tuple[tuple[Path, str], ...] = ()
    steps: tuple[Step, ...] = ()
    removes: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
