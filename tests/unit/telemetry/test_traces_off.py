"""Traces are off by default, and then no program loads a library for them."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from pathlib import Path
{hide}
from panal.core.settings import load
import panal.cli.agent_program, panal.cli.gateway_program, panal.cli.up, panal.cli.commands
from panal.telemetry.tracing import span_export
from panal.core.errors import SettingsError
try:
    made = span_export(load(None, os.environ).telemetry, "panal", "1", "0")
except SettingsError as error:
    print("refused:", error.message)
else:
    print("made" if made else "none")
print(sorted(name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "google")))
"""
HIDE = "sys.modules['opentelemetry'] = None"


def outcome(*, hide: bool = False, endpoint: str = "") -> list[str]:
    environment = {"PYTHONPATH": str(Path(__file__).parents[3] / "src"), "PATH": ""}
    if endpoint:
        environment["PANAL_TELEMETRY__TRACES_ENDPOINT"] = endpoint
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(hide=HIDE if hide else "")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment,
    ).stdout.splitlines()


def test_off_loads_nothing_of_opentelemetry() -> None:
    assert outcome() == ["none", "[]"]


def test_on_loads_it() -> None:
    made, loaded = outcome(endpoint="http://127.0.0.1:4318")
    assert made == "made"
    assert "opentelemetry" in loaded


def test_on_without_the_extra_stops_the_start_with_a_sentence() -> None:
    said, _loaded = outcome(hide=True, endpoint="http://127.0.0.1:4318")
    assert said.startswith("refused: Traces are switched on")
    assert "pip install 'panal[traces]'" in said


@pytest.mark.parametrize("hide", [True, False])
def test_off_does_not_ask_whether_it_is_there(hide: bool) -> None:
    assert outcome(hide=hide)[0] == "none"
