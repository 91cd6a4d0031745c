"""``panal up`` as a person meets it: what it prints, what it leaves, what it survives."""

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from panal.cli.api_client import Api, ApiRefused
from panal.core.errors import BusError
from panal.node.weights import SMOLLM2_135M, ModelCache, cache_folder
from tests.support.ends import sentence_of, the_sentence
from tests.support.installation import Installation, Program, processes_naming, short_folder, until

BACK_S_MAX = 45.0
GONE_S_MAX = 20.0

FALL_WITH = {"agent": ("engine",)}
"""What may not outlive a part."""

PARTS: dict[str, Callable[[list[str]], bool]] = {
    "nats-server": lambda words: words[0].endswith("nats-server"),
    "gateway": lambda words: words[2:4] == ["panal", "gateway"],
    "agent": lambda words: words[2:4] == ["panal", "agent"],
    "engine": lambda words: words[2].startswith("panal.node.engines."),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.fixture(scope="module")
def running() -> Iterator[Installation]:
    """One installation with the echo engine for all tests that leave it as it was."""
    with short_folder() as made:
        installation = Installation(made, arguments=["--engine", "echo"]).start()
        try:
            yield installation
        finally:
            installation.stop()


def echo(installation: Installation, key: str = "") -> str:
    """What the echo engine answers."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "say it again"}]}
    answer = Api(installation.url, key or installation.key).post("/v1/chat/completions", body)
    return str(answer["choices"][0]["message"]["content"])


def answers(installation: Installation) -> bool:
    with contextlib.suppress(ApiRefused, BusError, OSError):
        return bool(echo(installation))
    return False


def part(installation: Installation, name: str) -> psutil.Process:
    """The process of one part. Its command line holds the home's path."""
    running = {each: each.cmdline() for each in processes_naming(str(installation.home))}
    found = [each for each, words in running.items() if PARTS[name](words)]
    assert len(found) == 1, (name, running.values())
    return found[0]


def nothing_left(installation: Installation) -> None:
    until(lambda: not processes_naming(str(installation.home)), GONE_S_MAX, "every process is gone")


# --- what is printed ---------------------------------------------------------------------------------


def curl_of(output: str) -> str:
    """The command as a person would copy it, its continued lines too."""
    lines = output.splitlines()
    start = next(number for number, line in enumerate(lines) if line.strip().startswith("curl "))
    taken = []
    for line in lines[start:]:
        taken.append(line)
        if not line.endswith("\\"):
            break
    return "\n".join(taken)


def paste(command: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def until_said(program: Program, words: str) -> None:
    def said() -> bool:
        assert program.process.poll() is None, program.output
        return words in program.output

    until(said, 60.0, f"it says '{words}'")


@pytest.mark.model
@pytest.mark.timeout(240)
def test_what_is_printed_can_be_pasted_and_a_restart_keeps_keys_node_and_cordon(folder: Path) -> None:
    if ModelCache(cache_folder(os.environ)).find(SMOLLM2_135M) is None:
        pytest.skip("the small model is not in the cache: panal models fetch")
    installation = Installation(folder)
    program = Program(["up"], installation.environment)
    try:
        until_said(program, "Ctrl-C stops")
        output = program.output
        assert re.search(r"https?://[^\s]+", output)[0] == f"{installation.url}/v1"
        assert "smollm2-135m" in output
        key = re.search(r"API key +(sk-panal-\S+)", output)[1]
        assert "starting the gateway" in output and "starting the engine" in output
        answer = paste(curl_of(output))
        assert answer["choices"][0]["message"]["content"]
        nodes = installation.run("nodes", "list")
        assert len(nodes) == 1
        installation.run("nodes", "cordon", nodes[0]["name"], "--reason", "kept over a restart")
    finally:
        assert program.stop() == 0, program.output
    nothing_left(installation)
    assert not holding(installation.home, key), "a key may only be stored hashed"

    again = Program(["up"], installation.environment)
    try:
        until(lambda: serving(installation), 60.0, "the gateway answers")
        after = installation.run("nodes", "list")
        assert [(each["id"], each["membership"]) for each in after] == [(nodes[0]["id"], "cordoned")]
        installation.run("nodes", "uncordon", nodes[0]["name"])
        until_said(again, "Ctrl-C stops")
        assert "sk-panal-" not in again.output
        assert paste(curl_of(again.output), {"PANAL_API_KEY": key})["choices"]
    finally:
        again.process.send_signal(signal.SIGTERM)
        status = again.wait(30.0)
        again.kill()
    assert status == 0
    nothing_left(installation)


def serving(installation: Installation) -> bool:
    with contextlib.suppress(ApiRefused, BusError, OSError):
        return bool(installation.admin().get("/api/v1/fleet"))
    return False


def holding(home: Path, text: str) -> list[Path]:
    """Files in which the text stands."""
    return [path for path in home.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


# --- what it survives --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.timeout(120)
def test_a_killed_part_comes_back_by_itself(running: Installation, name: str) -> None:
    until(lambda: answers(running), BACK_S_MAX, "it answers before the fault")
    killed = part(running, name)
    others = {each: part(running, each).pid for each in PARTS if each not in (name, *FALL_WITH.get(name, ()))}
    killed.kill()
    killed.wait(10.0)
    until(
        lambda: answers(running),
        BACK_S_MAX,
        f"it answers again after {name} was killed: {running.program.lines}",
    )
    assert part(running, name).pid != killed.pid
    assert {each: part(running, each).pid for each in others} == others, "nothing else was started again"
    assert running.program is not None and running.program.process.poll() is None


@pytest.mark.timeout(120)
def test_a_second_start_on_the_same_home_says_so_and_harms_nothing(running: Installation) -> None:
    sentence = sentence_of(["up", "--engine", "echo"], running.environment)
    assert "already runs" in sentence and str(running.home) in sentence
    until(lambda: answers(running), BACK_S_MAX, "the first one still answers")


@pytest.mark.timeout(120)
def test_children_never_outlive_a_killed_parent(folder: Path) -> None:
    installation = Installation(folder, arguments=["--engine", "echo"]).start()
    key = installation.key
    try:
        for name in PARTS:
            assert part(installation, name)
        assert installation.program is not None
        installation.program.process.kill()
        installation.program.process.wait()
        nothing_left(installation)
        installation.program.kill()
        installation.start()
        until(lambda: echo(installation, key), BACK_S_MAX, "a start after the kill serves with the old key")
        assert len(installation.run("nodes", "list")) == 1
        with contextlib.closing(sqlite3.connect(installation.home / "panal.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        installation.stop()
    nothing_left(installation)


# --- starts that cannot be ---------------------------------------------------------------------------

PORTS = ("PANAL_GATEWAY__HTTP_PORT", "PANAL_GATEWAY__HTTPS_PORT", "PANAL_BUS__NATS_PORT")


@pytest.mark.timeout(240)
def test_a_busy_port_is_named_and_the_next_start_is_as_the_first(folder: Path) -> None:
    installation = Installation(folder, arguments=["--engine", "echo"])
    for variable in PORTS:
        with socket.create_server(("127.0.0.1", int(installation.environment[variable]))):
            program = Program(["up", "--engine", "echo"], installation.environment)
            assert program.wait(60.0) != 0
            program.kill()
        assert installation.environment[variable] in the_sentence(program.output)
        assert "sk-panal-" not in program.output
        nothing_left(installation)
    try:
        installation.start()
        assert installation.key.startswith("sk-panal-"), "the first key is shown at the first good start"
        assert echo(installation)
    finally:
        installation.stop()


@pytest.mark.parametrize("where", ["home", "home/logs", "home/agent", "home/nats", "home/ca", "home/spool"])
@pytest.mark.timeout(120)
def test_a_folder_that_cannot_be_written_is_named(folder: Path, where: str) -> None:
    installation = Installation(folder)
    (folder / where).parent.mkdir(exist_ok=True)
    (folder / where).write_text("a file where a folder should be")
    sentence = sentence_of(["up", "--engine", "echo"], installation.environment)
    assert str(folder / where) in sentence
    nothing_left(installation)
    assert (folder / where).read_text() == "a file where a folder should be"


@pytest.mark.timeout(120)
def test_a_missing_model_is_told_with_what_to_do(folder: Path) -> None:
    installation = Installation(folder)
    nowhere = {
        "PANAL_CACHE": str(folder / "cache"),
        "PIP_NO_INDEX": "1",
        "https_proxy": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }
    sentence = sentence_of(["up"], {**installation.environment, **nowhere})
    assert "smollm2-135m" in sentence and str(folder / "cache") in sentence
    nothing_left(installation)
    installation.arguments = ["up", "--json", "--engine", "echo"]
    try:
        installation.start()
        assert echo(installation)
    finally:
        installation.stop()


def test_a_wrong_setting_stops_the_start_with_its_name(folder: Path) -> None:
    installation = Installation(folder)
    for variable, value in (("PANAL_GATEWAY__HTTP_PORT", "many"), ("PANAL_GATEWAY__HTTP_HOST", "0.0.0.0")):
        sentence = sentence_of(["up"], {**installation.environment, variable: value})
        assert variable.lower().replace("panal_", "").replace("__", ".") in sentence
    assert not installation.home.exists()
