"""Every command explains itself and is in a document; every command in a document exists."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from panal.cli.commands import application
from tests.architecture.pages import fenced, page, pages

ROOT_COMMAND: Any = typer.main.get_command(application())
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in pages())


def commands(found: Any = ROOT_COMMAND, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in getattr(found, "commands", {}).items():
        yield (*path, name), command
        yield from commands(command, (*path, name))


ALL = dict(commands())
LEAVES = {path: command for path, command in ALL.items() if not hasattr(command, "commands")}


def written() -> list[list[str]]:
    """The words of every ``panal ...`` command line in the documents."""
    lines = []
    for path in pages():
        text = path.read_text(encoding="utf-8")
        found = fenced(text) + re.findall(r"`(panal [^`]+)`", text)
        found += [line.strip() for line in text.splitlines() if line.startswith("    panal ")]
        for line in found:
            match = re.match(r"(?:\$ )?panal ((?:[^#|;,]|\|\S)+)", line.strip())
            if match:
                lines.append(shlex.split(re.split(r"\s{3,}", match[1])[0]))
    return lines


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    command = ALL[path]
    hidden = getattr(command, "hidden", False)
    assert hidden or command.help


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_option_and_argument_explains_itself(path: tuple[str, ...]) -> None:
    if getattr(LEAVES[path], "hidden", False):
        return
    for parameter in LEAVES[path].params:
        assert getattr(parameter, "help", None), f"{' '.join(path)}: {parameter.name}"


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_is_in_a_document(path: tuple[str, ...]) -> None:
    if len(path) == 1:
        assert re.search(rf"panal {path[0]}\b", TEXT), path
    else:
        *nouns, verb = path
        lines = [line for line in TEXT.splitlines() if re.search(rf"panal {' '.join(nouns)}\b", line)]
        assert any(re.search(rf"\b{verb}\b", line) for line in lines), path


@pytest.mark.parametrize("words", written(), ids=" ".join)
def test_every_command_in_a_document_exists(words: list[str]) -> None:
    command, rest = ROOT_COMMAND, list(words)
    while rest and hasattr(command, "commands"):
        name = rest.pop(0)
        if name.isupper() or name.startswith("-"):
            return
        assert name in command.commands, f"panal {' '.join(words)}"
        command = command.commands[name]
    if words[0] == "agent":
        return
    known = {option for parameter in getattr(command, "params", ()) for option in _names(parameter)}
    for word in rest:
        if word.startswith("--"):
            assert word in known | {"--help"}, f"panal {' '.join(words)}: {word}"


def _names(parameter: Any) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts]


def test_the_agent_explains_its_options() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "panal", "agent", "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    for option in ("--home", "--config", "--engine", "--engine-url", "--model-digest"):
        assert option in told


def test_the_readme_names_what_a_newcomer_needs() -> None:
    readme = page("README.md")
    for words in ("panal tokens create", "panal join", "--listen", "panal demo failover", "panal chat",
                  "panal status", "panal desk pause", "curl ", "from openai import OpenAI"):  # fmt: skip
        assert words in readme, words
