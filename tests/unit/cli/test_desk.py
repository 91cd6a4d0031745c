"""The owner's commands as programs, with no server and no agent there."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "agent").mkdir()
    return tmp_path


def panal(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "panal", "desk", *words, "--home", str(home)]
    environment = {**os.environ, "PANAL_HOME": str(home)}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


def limits(home: Path, *words: str) -> dict[str, Any]:
    done = panal(home, "limits", *words, "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_limits_are_set_one_by_one_shown_and_cleared(home: Path) -> None:
    assert not any(limits(home).values())
    limits(home, "--memory", "1.5GiB", "--hours", "mo-fr 18:00-08:00")
    told = limits(home, "--program", "game", "--program", "cad", "--power", "150")
    assert told == {
        "memory_bytes_max": 3 * 2**29,
        "gpu_memory_bytes_max": None,
        "power_w_max": 150.0,
        "hours": "mo-fr 18:00-08:00",
        "programs": ["game", "cad"],
    }
    assert "no limit of yours" in panal(home, "limits").stdout
    assert limits(home, "--clear")["hours"] == ""


@pytest.mark.parametrize("words", [("--memory", "much"), ("--hours", "at night"), ("--power", "-1")])
def test_what_is_no_limit_is_refused_with_a_sentence(home: Path, words: tuple[str, str]) -> None:
    done = panal(home, "limits", *words)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert not (home / "agent" / "desk").exists()


def test_the_page_is_served_until_it_is_interrupted(home: Path) -> None:
    command = [sys.executable, "-m", "panal", "desk", "page", "--home", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as page:
        assert page.stdout is not None
        url = urlsplit(page.stdout.readline().strip())
        assert url.hostname == "127.0.0.1"
        assert url.port is not None
        with socket.create_connection((url.hostname, url.port), timeout=30) as connection:
            connection.sendall(f"GET /?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode())
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"The agent does not run" in answer
        page.send_signal(signal.SIGINT)
        assert page.wait(30) == 0
