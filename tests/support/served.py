"""One installation on this machine as its users meet it: the official client, and what an operator sees."""

import http.client
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil

from panal.cli.api_client import Api
from tests.support.installation import Installation, Program, processes_naming, until

CLIENT_S_MAX = 60.0
GONE_S_MAX = 2.0
"""A client that leaves is felt by the engine within this time (P05, P06); the promise itself, not a guess."""


@dataclass(frozen=True)
class Reply:
    """A raw HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.json["error"]
        return found


@dataclass
class Agent:
    """A joined node: its folder and its program."""

    home: Path
    arguments: tuple[str, ...]
    program: Program
    name: str = ""
    node: str = ""

    @property
    def runs(self) -> bool:
        return self.program.process.poll() is None

    def engine(self) -> psutil.Process:
        return engine_of(self.home)

    def kill(self) -> None:
        """End at once, without a word to anybody; the engine goes with its agent."""
        self.program.process.kill()
        self.program.process.wait()


@dataclass
class Served:
    """``panal up`` and the nodes that were joined to it beside its own."""

    installation: Installation
    agents: dict[str, Agent] = field(default_factory=dict)

    # --- clients

    def client(self, key: str | None = None, *, port: int = 0) -> openai.OpenAI:
        """The official client, without retries of its own. Use it in ``with``."""
        return openai.OpenAI(
            base_url=f"http://127.0.0.1:{port or self.installation.http_port}/v1",
            api_key=self.installation.key if key is None else key,
            http_client=httpx2.Client(timeout=CLIENT_S_MAX),
            max_retries=0,
        )

    def async_client(self, key: str | None = None) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.installation.url}/v1",
            api_key=self.installation.key if key is None else key,
            http_client=httpx2.AsyncClient(timeout=CLIENT_S_MAX),
            max_retries=0,
        )

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = "",
        headers: dict[str, str] | None = None,
        port: int = 0,
    ) -> Reply:
        """One plain HTTP exchange. ``key`` "" is the first user's, None sends none."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", port or self.installation.http_port, timeout=CLIENT_S_MAX
        )
        given = {"content-type": "application/json", **(headers or {})}
        if key is not None:
            given["authorization"] = f"Bearer {key or self.installation.key}"
        try:
            content = body if body is None or isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, content, given)
            answer = connection.getresponse()
            headers_seen = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, headers_seen, answer.read())
        finally:
            connection.close()

    def events(self, path: str, body: dict[str, Any]) -> list[str]:
        """A stream as it is on the wire: its events' data and its comments (with their colon), in order."""
        reply = self.call("POST", path, body | {"stream": True})
        assert reply.status == 200, reply.body
        text = reply.body.decode()
        assert "�" not in text
        lines = [line for line in text.split("\n") if line]
        for line in lines:
            assert line.startswith(("data: ", ":")), line
        return [line.removeprefix("data: ") for line in lines]

    # --- what an operator sees

    def admin(self) -> Api:
        return self.installation.admin()

    def fleet(self) -> dict[str, dict[str, Any]]:
        return {node["name"]: node for node in self.admin().get("/api/v1/fleet")["nodes"]}

    def running(self) -> int:
        """Requests inside engines, as nodes report it."""
        return sum(
            replica["running"] + replica["waiting"]
            for node in self.fleet().values()
            for replica in node["replicas"]
        )

    def gauge(self, name: str) -> float:
        """A metric without labels, as it is scraped now."""
        match = re.search(rf"^{name} (\S+)$", self.metrics(), re.MULTILINE)
        assert match is not None, f"no metric {name}"
        return float(match[1])

    def metrics(self) -> str:
        reply = self.call("GET", "/metrics", key=self.installation.admin_key)
        assert reply.status == 200, reply.body
        return reply.body.decode()

    def is_idle(self) -> bool:
        """Whether gateway and nodes say that nothing is left of any request, in exact zeros."""
        gauges = ("panal_requests_in_flight", "panal_requests_queued", "panal_streams")
        return self.running() == 0 and all(self.gauge(name) == 0.0 for name in gauges)

    def until_idle(self, seconds: float = 10.0) -> None:
        until(self.is_idle, seconds, "nothing runs any more")

    def record_of(self, request_id: str) -> dict[str, Any]:
        """The usage record of a request (``req_...`` or the id of its response), once it is written."""
        wanted = "req_" + re.sub(r"^[a-z]+[-_]", "", request_id)

        def found() -> dict[str, Any] | None:
            items = self.admin().get("/api/v1/usage", limit=200)["items"]
            records = [record for record in items if record["request"] == wanted]
            assert len(records) <= 1
            return records[0] if records else None

        record: dict[str, Any] = until(found, 15.0, f"the usage record of {wanted}")
        return record

    # --- nodes

    def engine(self) -> "EngineSeen":
        """The engine of this machine's own node."""
        return EngineSeen(engine_of(self.installation.home / "agent"))

    def join(
        self,
        name: str,
        *arguments: str,
        copied: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> Agent:
        """A node in a folder of its own on this machine, started and serving.

        ``copied``: use this folder, which has joined already, instead of a new one. ``environment``:
        settings of its own.
        """
        home = copied or self.installation.home.parent / name
        environment = {"PANAL_HOME": str(home), "PANAL_NODE__THREADS": "1"} | (environment or {})
        environment |= {
            key: value
            for key, value in self.installation.environment.items()
            if key.startswith(("PANAL_LOG__", "PANAL_TELEMETRY__"))
        }
        if copied is None:
            token = self.installation.run("tokens", "create", "--class", "dedicated")["token"]
            url = f"https://127.0.0.1:{self.installation.environment['PANAL_GATEWAY__HTTPS_PORT']}"
            joining = Program(["join", url, "--token", token, "--no-run", "--json"], environment)
            assert joining.wait(30.0) == 0, joining.output
            said = json.loads(joining.output)
            joining.kill()
        else:
            said = {"node": "", "name": ""}
        program = Program(["agent", *arguments], environment)
        agent = Agent(home, arguments, program, said["name"], said["node"])
        self.agents[name] = agent
        return agent

    def again(self, name: str, environment: dict[str, str] | None = None) -> None:
        """Start a node's agent again, with settings of its own."""
        agent = self.agents[name]
        environment = {"PANAL_HOME": str(agent.home), "PANAL_NODE__THREADS": "1"} | (environment or {})
        agent.program.kill()
        agent.program = Program(["agent", *agent.arguments], environment)

    def until_serving(self, *names: str) -> None:
        """Until exactly these of the joined nodes take work."""
        wanted = {self.agents[name].name for name in names}

        def serving() -> bool:
            return {name for name, node in self.fleet().items() if takes_work(node)} == wanted

        until(serving, 60.0, f"{', '.join(names) or 'no node'} serving")

    def speaking(self) -> str:
        """The one of the joined nodes that answers now."""

        def found() -> str | None:
            fleet = self.fleet()
            for name, agent in self.agents.items():
                if any(replica["running"] for replica in fleet[agent.name]["replicas"]):
                    return name
            return None

        name: str = until(found, 10.0, "a node answers")
        return name

    def contributions(self, response_id: str) -> list[dict[str, Any]]:
        request = self.record_of(response_id)["request"]
        made: list[dict[str, Any]] = self.admin().get(f"/api/v1/usage/{request}/contributions")
        return made

    def stop(self) -> None:
        for agent in self.agents.values():
            agent.program.kill()
        self.installation.stop()


def takes_work(node: dict[str, Any]) -> bool:
    """Whether a node of the fleet's view serves."""
    return (
        node["liveness"] == "live"
        and node["membership"] == "active"
        and node["state"] in ("available", "serving")
        and any(replica["healthy"] for replica in node["replicas"])
    )


def engine_of(home: Path) -> psutil.Process:
    """The echo engine that was started in an agent's folder."""

    def found() -> psutil.Process | None:
        named = [
            each for each in processes_naming(str(home)) if "panal.node.engines.echo_engine" in each.cmdline()
        ]
        return named[0] if named else None

    process: psutil.Process = until(found, 20.0, f"an engine in {home}")
    return process


class EngineSeen:
    """An echo engine from outside: where it listens, and what it counted."""

    def __init__(self, process: psutil.Process) -> None:
        self.process = process
        listening = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        assert len(listening) == 1
        self.address: str = listening[0].laddr.ip
        self.port: int = listening[0].laddr.port

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=10.0)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, headers or {})
            answer = connection.getresponse()
            return Reply(answer.status, {}, answer.read())
        finally:
            connection.close()

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self.call("GET", "/echo/stats").json
        return stats

    def until_cancelled(self, before: int, seconds: float = GONE_S_MAX) -> float:
        """Wait until one more request was broken off than ``before``; gives the seconds it took."""
        begun_s = time.monotonic()
        until(lambda: self.stats()["cancelled"] > before, seconds, "the engine sees the abort")
        return time.monotonic() - begun_s
