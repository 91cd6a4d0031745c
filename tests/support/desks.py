"""The slice as hosts: a gateway on one, desks on others that can only dial out."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil

from panal.cli.api_client import Api
from tests.support.display import Display, display
from tests.support.hosts import Host, hosts
from tests.support.installation import Installation, Program, processes_naming, until

HTTPS_PORT, HTTP_PORT, NATS_PORT = 7443, 7080, 7422
IDLE_S = 1.0


@dataclass
class Desk:
    """One desk: its host, its screen, its agent."""

    host: Host
    screen: Display
    home: Path
    agent: Program
    name: str = ""
    node: str = ""

    def agent_process(self) -> psutil.Process:
        found = [each for each in processes_naming(str(self.home)) if "agent" in each.cmdline()]
        return found[0]

    def told(self) -> str:
        """What the agent wrote down for its owner last."""
        try:
            return (self.home / "agent" / "desk" / "status.json").read_text()
        except OSError as error:
            return f"nothing: {error}"

    def engines(self) -> list[psutil.Process]:
        """The engine's processes; empty when it is gone."""
        return [each for each in processes_naming(str(self.home)) if "agent" not in each.cmdline()]


@dataclass
class Office:
    """A gateway and its desks."""

    installation: Installation
    address: str
    desks: list[Desk]

    @property
    def url(self) -> str:
        return f"https://{self.address}:{HTTPS_PORT}"

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client, over HTTPS, believing the installation's own CA."""
        import ssl

        import httpx2

        context = ssl.create_default_context(cafile=str(self.installation.ca_file))
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=self.installation.key,
            http_client=httpx2.Client(verify=context, timeout=90.0),
            max_retries=0,
            **options,
        )

    def admin(self) -> Api:
        ca_pem = self.installation.ca_file.read_text()
        return Api(self.url, self.installation.admin_key, ca_pem)

    def fleet(self) -> dict[str, dict[str, Any]]:
        return {node["name"]: node for node in self.admin().get("/api/v1/fleet")["nodes"]}

    def until_serving(self, count: int) -> None:
        def serving() -> bool:
            working = [node for node in self.fleet().values() if node["state"] in ("available", "serving")]
            return len(working) >= count and all(
                replica["healthy"] for node in working for replica in node["replicas"]
            )

        try:
            until(serving, 60.0, f"{count} desks serve")
        except AssertionError as error:
            seen = {name: (node["state"], node["reason"]) for name, node in self.fleet().items()}
            told = [desk.told() for desk in self.desks]
            raise AssertionError(f"{error}: {seen} {told}") from None

    def speaking(self) -> Desk:
        """The desk that answers now."""

        def found() -> Desk | None:
            for name, node in self.fleet().items():
                if any(replica["running"] for replica in node["replicas"]):
                    return next(desk for desk in self.desks if desk.name == name)
            return None

        return until(found, 10.0, "a desk answers")  # type: ignore[no-any-return]

    def contributions(self, response_id: str) -> list[dict[str, Any]]:
        """What each node made of an answer, once the store has it."""
        until(lambda: self.usage(response_id), 15.0, "the request is written to the store")
        made: list[dict[str, Any]] = self.admin().get(
            f"/api/v1/usage/{request_of(response_id)}/contributions"
        )
        return made

    def usage(self, response_id: str) -> list[dict[str, Any]]:
        request = request_of(response_id)
        records = self.admin().get("/api/v1/usage", limit=1000)["items"]
        return [record for record in records if record["request"] == request]


def request_of(response_id: str) -> str:
    """The request id that belongs to a response id."""
    return "req_" + re.sub(r"^[a-z]+-", "", response_id)


@contextlib.contextmanager
def office(
    folder: Path,
    engine: str,
    desk_count: int = 2,
    *,
    environment: dict[str, str] | None = None,
    owner: Mapping[str, str] | None = None,
) -> Iterator[Office]:
    """A gateway on one host and desks on others. ``engine``: echo, or embedded in its exact mode.

    ``environment``: settings of the gateway's installation; ``owner``: of the desks' agents beside the
    usual ones.
    """
    with contextlib.ExitStack() as stack:
        _own, (gateway_host, *desk_hosts) = stack.enter_context(hosts(desk_count + 1))
        installation = Installation(
            folder,
            arguments=["--no-node", "--listen", gateway_host.address],
            environment={
                "PANAL_GATEWAY__HTTP_PORT": str(HTTP_PORT),
                "PANAL_GATEWAY__HTTPS_PORT": str(HTTPS_PORT),
                "PANAL_BUS__NATS_PORT": str(NATS_PORT),
                **(environment or {}),
            },
            prefix=gateway_host.prefix,
        )
        installation.start()
        stack.callback(installation.stop)
        made = Office(installation, gateway_host.address, [])
        token = installation.run("tokens", "create", "--uses", str(desk_count), "--class", "desktop")["token"]
        for number, host in enumerate(desk_hosts):
            screen = stack.enter_context(display())
            desk = _join(folder / f"desk{number}", host, screen, made.url, token, engine, owner or {})
            stack.callback(desk.agent.kill)
            made.desks.append(desk)
        made.until_serving(desk_count)
        yield made


def _join(
    home: Path, host: Host, screen: Display, url: str, token: str, engine: str, owner: Mapping[str, str]
) -> Desk:
    environment = {
        "PANAL_HOME": str(home),
        "DISPLAY": screen.name,
        "PANAL_OWNER__IDLE_S": str(IDLE_S),
        "PANAL_OWNER__COOLDOWN_S": "3600",
        "PANAL_NODE__EXACT": "true" if engine == "embedded" else "false",
        "PANAL_NODE__THREADS": "1",
        **owner,
    }
    agent = Program(["join", url, "--token", token, "--engine", engine], environment, host.prefix)
    line = until(
        lambda: next((each for each in agent.lines if "joined as" in each), None), 20.0, agent.output
    )
    match = re.search(r"joined as (\S+) \((\S+)\)", line)
    assert match is not None, agent.output
    return Desk(host, screen, home, agent, match[1], match[2])
