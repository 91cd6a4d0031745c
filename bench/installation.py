"""A real installation for measurements: bus with TLS, gateway, agents, engines, nginx - each a process."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import ssl
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from panal.bench.load import Target
from panal.bench.processes import pin
from panal.cli.api_client import Api, ApiRefused
from panal.core.errors import BusError

MODEL = "bench"
NODES_MODEL = "bench-nodes"
READY_S_MAX = 60.0
STOP_S_MAX = 20.0
SLOTS = 512

NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  keepalive_requests 100000000;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream engine {{ server 127.0.0.1:{engine_port}; keepalive 512; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


@dataclass
class Installation:
    """What runs. ``processes`` are the programs whose use is measured, by name."""

    folder: Path
    log: Path
    gateway_core: int | None
    other_core: int | None
    processes: dict[str, int] = field(default_factory=dict)
    targets: dict[str, Target] = field(default_factory=dict)
    url: str = ""
    secure_url: str = ""
    admin_key: str = ""
    user_key: str = ""
    ready_s: float = 0.0

    async def start(self, stack: contextlib.AsyncExitStack, nodes: int) -> None:
        """Start all; ``stack`` ends it in the reverse order. ``nodes``: played ones beside the agent."""
        arguments = ["-m", "panal.bench.engine", "--model", MODEL]
        engine_port = (await self._program(stack, "engine", arguments))["port"]
        self.targets["direct"] = Target("127.0.0.1", engine_port, MODEL)
        self._nginx(stack, engine_port)
        await self._up(stack)
        await self._agent(stack, engine_port)
        if nodes:
            await self._nodes(stack, nodes)
        for name, pid in self.processes.items():
            self._pin(name, pid)

    async def _up(self, stack: contextlib.AsyncExitStack) -> None:
        ports = free_ports(3)
        environment = {
            **os.environ,
            "PANAL_GATEWAY__HTTP_PORT": str(ports[0]),
            "PANAL_GATEWAY__HTTPS_PORT": str(ports[1]),
            "PANAL_BUS__NATS_PORT": str(ports[2]),
        }
        home = self.folder / "home"
        said = await self._program(
            stack, "up", ["-m", "panal", "up", "--no-node", "--json", "--home", str(home)], environment
        )
        self.user_key = said["api_key"]
        self.url, self.secure_url = f"http://127.0.0.1:{ports[0]}", f"https://127.0.0.1:{ports[1]}"
        self.admin_key = json.loads((home / "admin.json").read_text())["key"]
        for child in psutil.Process(self.processes.pop("up")).children(recursive=True):
            words = child.cmdline()
            name = "nats-server" if "nats-server" in words[0] else "gateway" if "gateway" in words else ""
            if name:
                self.processes[name] = child.pid
        secure = ssl.create_default_context(cafile=str(home / "ca" / "ca-certificate.pem"))
        for name, port, tls in (("panal", ports[0], None), ("panal HTTPS", ports[1], secure)):
            self.targets[name] = Target("127.0.0.1", port, MODEL, self.user_key, tls)
        for name in ("panal", "panal HTTPS"):
            plain = self.targets[name]
            self.targets[name + " nodes"] = Target("127.0.0.1", plain.port, NODES_MODEL, plain.key, plain.tls)

    async def _agent(self, stack: contextlib.AsyncExitStack, engine_port: int) -> None:
        home = self.folder / "machine"
        join = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "panal", "join", self.secure_url, "--no-run", "--home", str(home)),
            *("--token", self.join_token(1)),
            stdout=asyncio.subprocess.DEVNULL,
        )
        if await join.wait():
            raise RuntimeError("the bench's agent could not join")
        environment = {**os.environ, "PANAL_NODE__SLOTS": str(SLOTS)}
        arguments = ["--home", str(home / "agent"), "--engine-url", f"http://127.0.0.1:{engine_port}"]
        await self._program(stack, "agent", ["-m", "panal", "agent", *arguments], environment)
        await self._until_served(MODEL)

    async def _nodes(self, stack: contextlib.AsyncExitStack, count: int) -> None:
        program = str(Path(__file__).with_name("played_nodes.py"))
        options = ["--url", self.secure_url, "--nodes", str(count), "--model", NODES_MODEL]
        environment = {**os.environ, "PANAL_BENCH_TOKEN": self.join_token(count)}
        await self._program(stack, "played nodes", [program, *options], environment)
        await self._until_served(NODES_MODEL)

    def join_token(self, uses: int) -> str:
        api = Api(self.url, self.admin_key)
        wish = {"node_class": "dedicated", "data_class": "restricted", "life_s": 3600, "uses": uses}
        token: str = api.post("/api/v1/tokens", wish)["token"]
        return token

    async def _until_served(self, model: str) -> None:
        api = Api(self.url, self.admin_key)
        async with asyncio.timeout(READY_S_MAX):
            while True:
                with contextlib.suppress(ApiRefused, BusError):
                    nodes = (await asyncio.to_thread(api.get, "/api/v1/fleet"))["nodes"]
                    if any(each["model"] == model for node in nodes for each in node["replicas"]):
                        return
                await asyncio.sleep(0.1)

    def _nginx(self, stack: contextlib.AsyncExitStack, engine_port: int) -> None:
        binary = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
        if binary is None:
            return
        folder = self.folder / "nginx"
        folder.mkdir()
        (port,) = free_ports(1)
        config = folder / "nginx.conf"
        config.write_text(NGINX.format(folder=folder, port=port, engine_port=engine_port))
        nginx = psutil.Popen([binary, "-p", str(folder), "-e", "stderr", "-c", str(config)])
        stack.callback(nginx.wait, STOP_S_MAX)
        stack.callback(nginx.terminate)
        self._nginx_master = nginx
        self.targets["nginx"] = Target("127.0.0.1", port, MODEL)

    async def find_nginx(self) -> None:
        """Its worker, once it is there."""
        if "nginx" not in self.targets:
            return
        async with asyncio.timeout(READY_S_MAX):
            while not (workers := self._nginx_master.children()):
                await asyncio.sleep(0.05)
        self.processes["nginx"] = workers[0].pid
        self._pin("nginx", workers[0].pid)

    async def _program(
        self,
        stack: contextlib.AsyncExitStack,
        name: str,
        arguments: list[str],
        environment: dict[str, str] | None = None,
    ) -> Any:
        """Start one of our programs and give the first JSON that it says."""
        log = stack.enter_context(self.log.open("ab"))
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=log, env=environment
        )
        stack.push_async_callback(_stop, process)
        self.processes[name] = process.pid
        assert process.stdout is not None
        text = b""
        async with asyncio.timeout(READY_S_MAX):
            while True:
                line = await process.stdout.readline()
                if not line:
                    raise RuntimeError(f"'{name}' ended at its start: {text.decode()} (see {self.log})")
                text += line
                with contextlib.suppress(json.JSONDecodeError):
                    return json.loads(text)

    def _pin(self, name: str, pid: int) -> None:
        core = self.gateway_core if name in ("gateway", "nginx") else self.other_core
        if core is not None:
            pin(pid, core)


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has at the moment."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
