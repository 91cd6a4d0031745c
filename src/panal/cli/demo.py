"""``panal demo failover``: a node is killed in the middle of an answer, and the answer goes on.

A whole installation in a temporary folder with three nodes on this machine, real in every part: only
the machines are one. It ends by itself and leaves nothing.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from panal.cli.api_client import Api
from panal.cli.chat import Listener, Told, chat, served_models
from panal.cli.children import Child
from panal.cli.home import Home
from panal.cli.model_cache import ensure_model
from panal.core.clock import SystemClock
from panal.core.errors import SettingsError
from panal.node.enrolled import save_enrolled
from panal.node.joining import Machine, join

NODES = ("desk-ana", "desk-luis", "desk-noor")
KILLED_AFTER_PIECES = 25
MAX_TOKENS = 130
START_S_MAX = 30.0
STOP_S = 5.0
PROMPT = "Tell a long story about a bee who builds a honeycomb together with her sisters."


@dataclass
class Show:
    """What the audience sees, and what is counted meanwhile."""

    console: Console
    quiet: bool
    pieces: int = 0
    speaker: str = ""
    killed: str = ""
    killed_s: float = 0.0
    gap_s: float = 0.0
    spoke: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text)

    def text(self, text: str) -> None:
        self.pieces += 1
        if self.killed_s and not self.gap_s and len(self.spoke) > 1:
            self.gap_s = time.monotonic() - self.killed_s
        if not self.quiet:
            self.console.print(text, end="", markup=False, highlight=False)

    def node(self, name: str, attempt: int) -> None:
        self.speaker = name
        self.spoke.append(name)
        if not self.quiet:
            lead = "" if attempt == 1 else "\n"
            self.console.print(f"{lead}[bold green]\\[{name} speaks][/] ", end="")

    def kill(self, name: str) -> None:
        self.killed, self.killed_s = name, time.monotonic()
        if not self.quiet:
            self.console.print(f"\n[bold red]\\[{name} is killed: kill -9][/]", end="")


async def failover(*, as_json: bool) -> None:
    """Run the demo. Raises PanalError with what went wrong."""
    console = Console(soft_wrap=True)
    ensure_model(os.environ, Console(stderr=True))
    show = Show(console, as_json)
    folder = Path(tempfile.mkdtemp(prefix="panal-demo-"))
    begun_s = time.monotonic()
    try:
        async with AsyncExitStack() as stack:
            show.say("starting a gateway and three nodes on this machine ...")
            ready = await _start_gateway(folder, stack)
            agents = await _start_nodes(folder, ready, stack)
            api = Api(ready["url"], ready["api_key"])
            await _until_all_serve(Api(ready["url"], ready["admin_key"]))
            show.say(f"ready after {time.monotonic() - begun_s:.0f} s; asking: {PROMPT}\n")
            told = await _ask_and_kill(api, agents, show)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _tell(show, told, as_json, time.monotonic() - begun_s)


async def _start_gateway(folder: Path, stack: AsyncExitStack) -> dict[str, Any]:
    """Bus and gateway by ``panal up``, without a node."""
    home = folder / "home"
    http, https, nats = _free_ports(3)
    environment = {
        **os.environ,
        "PANAL_HOME": str(home),
        "PANAL_GATEWAY__HTTP_PORT": str(http),
        "PANAL_GATEWAY__HTTPS_PORT": str(https),
        "PANAL_BUS__NATS_PORT": str(nats),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "panal",
        "up",
        "--no-node",
        "--json",
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    stack.push_async_callback(_stop, process)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S_MAX):
            text = b""
            while not text.rstrip().endswith(b"}"):
                line = await process.stdout.readline()
                if not line:
                    raise SettingsError("The demo's gateway did not start; see the message above.")
                text += line
    except TimeoutError:
        raise SettingsError("The demo's gateway did not start in time.") from None
    said = json.loads(text[text.index(b"{") :])
    access = Home(home).admin_access()
    assert access is not None
    return {
        "url": access.url,
        "secure_url": f"https://127.0.0.1:{https}",
        "api_key": said["api_key"],
        "admin_key": access.key,
    }


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(STOP_S):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()


async def _start_nodes(folder: Path, ready: dict[str, Any], stack: AsyncExitStack) -> dict[str, Child]:
    """Three nodes, each joined by the way of every machine."""
    admin = Api(ready["url"], ready["admin_key"])
    wish = {"node_class": "dedicated", "data_class": "restricted", "uses": len(NODES)}
    made = await asyncio.to_thread(admin.post, "/api/v1/tokens", wish)
    agents: dict[str, Child] = {}
    environment = {**os.environ, "PANAL_NODE__EXACT": "true", "PANAL_NODE__THREADS": "1"}
    for name in NODES:
        home = folder / name
        enrolled = await asyncio.to_thread(
            join, ready["secure_url"], made["token"], Machine(name, ""), SystemClock(), os.urandom
        )
        save_enrolled(home, enrolled)
        child = Child("agent", ["agent", "--watch-parent", "--home", str(home)], environment)
        stack.push_async_callback(child.stop, STOP_S)
        await child.start()
        agents[name] = child
    for child in agents.values():
        await child.until("running")
    return agents


async def _until_all_serve(admin: Api) -> None:
    def all_serve() -> bool:
        nodes = admin.get("/api/v1/fleet")["nodes"]
        ready = [
            node
            for node in nodes
            if node["state"] == "available" and any(each["healthy"] for each in node["replicas"])
        ]
        return len(ready) == len(NODES)

    try:
        async with asyncio.timeout(START_S_MAX):
            while not await asyncio.to_thread(all_serve):
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise SettingsError("The demo's nodes did not become ready in time.") from None


async def _ask_and_kill(api: Api, agents: dict[str, Child], show: Show) -> Told:
    """Stream an answer; kill whoever speaks once enough was said."""
    model = (await asyncio.to_thread(served_models, api))[0]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0.0,
    }

    def on_text(text: str) -> None:
        show.text(text)
        if show.pieces == KILLED_AFTER_PIECES and not show.killed:
            show.kill(show.speaker)
            _kill(agents[show.speaker])

    return await asyncio.to_thread(chat, api, body, Listener(on_text, show.node))


def _kill(child: Child) -> None:
    pid = child.pid
    if pid is not None:
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def _tell(show: Show, told: Told, as_json: bool, total_s: float) -> None:
    result = {
        "spoke": show.spoke,
        "killed": show.killed,
        "gap_s": round(show.gap_s, 2),
        "completion_tokens": told.usage.get("completion_tokens", 0),
        "finish": told.finish,
        "total_s": round(total_s, 1),
    }
    if as_json:
        show.console.print_json(data=result)
        return
    show.console.print(
        f"\n\n{' then '.join(show.spoke)}: one answer of {result['completion_tokens']} tokens. "
        f"After {show.killed} was killed, the next word came {show.gap_s:.1f} s later. "
        f"The client saw one stream and no error. ({total_s:.0f} s in all)"
    )


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
