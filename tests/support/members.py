"""Machines that join a running installation over loopback, each in a folder of its own."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from panal.core.errors import BusError
from tests.support.installation import Installation, Program, processes_naming, until


@dataclass
class Member:
    """One machine: its folder and the program that joined or runs its agent."""

    home: Path
    environment: dict[str, str]
    program: Program
    name: str = ""
    node: str = ""

    @property
    def agent_home(self) -> Path:
        return self.home / "agent"

    def start(self) -> None:
        """The agent again, on what it keeps from joining."""
        self.program = Program(["agent", "--engine", "echo"], self.environment)

    def stop(self) -> None:
        self.program.stop()

    def engines(self) -> list[psutil.Process]:
        """The engine's processes; empty when it is gone."""
        return [each for each in processes_naming(str(self.home)) if "agent" not in each.cmdline()]


@dataclass
class Members:
    """The machines of one test; ``close`` ends them."""

    installation: Installation
    folder: Path
    made: list[Member] = field(default_factory=list)

    @property
    def url(self) -> str:
        return str(self.installation.ready["secure_endpoint"]).removesuffix("/v1")

    def token(self, *options: str) -> str:
        return str(
            self.installation.run("tokens", "create", "--class", "dedicated", "--uses", "9", *options)[
                "token"
            ]
        )

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        return {"PANAL_HOME": str(home), **more}

    def join(self, token: str = "", options: Sequence[str] = ("--engine", "echo"), **more: str) -> Member:
        """A new machine becomes a node and runs its agent."""
        home = self.folder / f"member{len(self.made)}"
        environment = self.environment(home, **more)
        program = Program(["join", self.url, "--token", token or self.token(), *options], environment)
        member = Member(home, environment, program)
        self.made.append(member)
        line = until(
            lambda: next((each for each in program.lines if "joined as" in each), None), 30.0, "joined"
        )
        match = re.search(r"joined as (\S+) \((\S+)\)", line)
        assert match is not None
        member.name, member.node = match[1], match[2]
        return member

    def close(self) -> None:
        for member in self.made:
            member.program.kill()

    def live(self) -> dict[str, dict[str, Any]]:
        """Nodes by id as the gateway sees them."""
        return {each["id"]: each for each in self.installation.admin().get("/api/v1/fleet")["nodes"]}

    def serves(self, member: Member) -> bool:
        try:
            node = self.live().get(member.node)
        except BusError:  # the gateway is being started again
            return False
        return (
            node is not None
            and node["membership"] == "active"
            and node["liveness"] == "live"
            and node["state"] in ("available", "serving")
            and all(replica["healthy"] for replica in node["replicas"])
        )

    def until_serving(self, *members: Member) -> None:
        for member in members:
            until(lambda member=member: self.serves(member), 40.0, f"{member.name} serves")  # type: ignore[misc]
