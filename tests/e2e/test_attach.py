"""A program that already runs is attached to by its address; only a declared digest makes it resumable."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.installation import Installation, Program, free_ports, short_folder, until

UP = ["--no-node"]


class Attached:
    """An engine of its own life, and the node that was joined for it."""

    def __init__(self, installation: Installation, folder: Path, digest: str) -> None:
        port = free_ports(1)[0]
        command = [
            sys.executable,
            "-m",
            "panal.node.engines.echo_engine",
            "--home",
            str(folder),
            "--port",
            str(port),
        ]
        self.engine = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        token = installation.run("tokens", "create", "--class", "dedicated")["token"]
        arguments = [
            "join",
            installation.ready["secure_endpoint"].removesuffix("/v1"),
            "--token",
            token,
            "--engine-url",
            f"http://127.0.0.1:{port}/v1",
        ]
        if digest:
            arguments += ["--model-digest", digest]
        self.agent = Program(arguments, {"PANAL_HOME": str(folder)})
        said = until(lambda: re.search(r"joined as (\S+)", self.agent.output), 20.0, "the node has joined")
        self.name = said[1]

    def stop(self) -> None:
        self.agent.kill()
        self.engine.kill()
        self.engine.wait()


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.fixture
def place(folder: Path) -> Iterator[Installation]:
    installation = Installation(folder, arguments=UP).start()
    yield installation
    installation.stop()


def replicas(place: Installation) -> list[dict[str, Any]]:
    nodes = place.admin().get("/api/v1/fleet")["nodes"]
    return [
        replica
        for node in nodes
        if node["liveness"] == "live"
        for replica in node["replicas"]
        if replica["healthy"]
    ]


def speaking(place: Installation) -> str | None:
    """The node that answers now."""
    for node in place.admin().get("/api/v1/fleet")["nodes"]:
        if any(replica["running"] for replica in node["replicas"]):
            return str(node["name"])
    return None


@pytest.mark.parametrize(("digest", "resume"), [("", "none"), ("sha256-of-the-weights", "token_ids")])
def test_an_attached_engine_serves_and_says_whether_it_can_go_on(
    place: Installation, folder: Path, digest: str, resume: str
) -> None:
    attached = Attached(place, folder / "node", digest)
    try:
        found = until(lambda: replicas(place), 30.0, "the attached engine serves")
        assert [replica["resume"] for replica in found] == [resume]
        with openai.OpenAI(base_url=f"{place.url}/v1", api_key=place.key, max_retries=0) as client:
            model = client.models.list().data[0].id
            answer = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "hello"}]
            )
            assert answer.choices[0].message.content == "hello"
        attached.agent.process.send_signal(signal.SIGINT)
        attached.agent.wait(20.0)
        os.kill(attached.engine.pid, 0)
    finally:
        attached.stop()


def test_an_answer_goes_on_between_attached_engines_of_one_digest(place: Installation, folder: Path) -> None:
    nodes = [Attached(place, folder / f"node{number}", "digest-1") for number in range(2)]
    try:
        until(lambda: len(replicas(place)) == 2, 30.0, "both attached engines serve")
        with openai.OpenAI(base_url=f"{place.url}/v1", api_key=place.key, max_retries=0) as client:
            stream = client.chat.completions.create(
                model=client.models.list().data[0].id,
                messages=[{"role": "user", "content": "count 80"}],
                stream=True,
                extra_body={"x_echo": {"delay_token_s": 0.01}},
            )
            text = ""
            for chunk in stream:
                text += chunk.choices[0].delta.content or "" if chunk.choices else ""
                if "20 " in text and len(nodes) == 2:
                    name = until(lambda: speaking(place), 5.0, "a node says that it answers")
                    nodes.pop([node.name for node in nodes].index(name)).stop()
        assert text == " ".join(map(str, range(1, 81)))
    finally:
        for node in nodes:
            node.stop()
