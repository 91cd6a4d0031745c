"""``panal doctor`` beside a running installation, a stopped one, and on a machine that only joined."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installation import Installation, short_folder, until
from tests.support.members import Members


@pytest.fixture(scope="module")
def running() -> Iterator[Installation]:
    with short_folder() as folder:
        installation = Installation(folder, arguments=["--engine", "echo"]).start()
        try:
            yield installation
        finally:
            installation.stop()


def doctor(environment: dict[str, str]) -> dict[str, list[str]]:
    """Findings by level. Libraries are left out: a working copy may ask for others than are installed."""
    done = subprocess.run(
        [sys.executable, "-m", "panal", "doctor", "--json"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert done.returncode == int(any(each["level"] == "bad" for each in found))
    by_level: dict[str, list[str]] = {"ok": [], "warn": [], "bad": []}
    for each in found:
        if "panal asks for" not in each["what"]:
            by_level[each["level"]].append(each["what"])
    return by_level


@pytest.mark.timeout(120)
def test_a_running_installation_and_its_node_are_well(running: Installation) -> None:
    environment = {**running.environment, "PANAL_NODE__ENGINE": "echo", "no_proxy": "*"}
    found = doctor(environment)
    assert (found["bad"], [each for each in found["warn"] if "GiB" not in each]) == ([], [])
    words = "\n".join(found["ok"])
    for wanted in ("answers", "is ours", "as the gateway's", "the bus accepts", "store: sqlite", "is node"):
        assert wanted in words, wanted


@pytest.mark.timeout(120)
def test_a_machine_that_joined_is_seen_as_a_node(running: Installation, tmp_path: Path) -> None:
    members = Members(running, tmp_path)
    member = members.join()
    members.until_serving(member)
    found = doctor(member.environment | {"PANAL_NODE__ENGINE": "echo", "no_proxy": "*"})
    member.stop()
    environment = member.environment | {"PANAL_NODE__ENGINE": "echo", "no_proxy": "*"}
    until(lambda: "its agent does not run" in doctor(environment)["warn"], 20.0, "it is seen to be stopped")
    members.close()
    assert found["bad"] == []
    assert any("the bus accepts" in each for each in found["ok"])
    assert not any("agent does not run" in each for each in found["warn"])
    assert not any("port" in each for each in found["ok"]), "a node opens no port"


@pytest.mark.timeout(120)
def test_a_stopped_installation_is_no_fault_and_readable_secrets_are(tmp_path: Path) -> None:
    with short_folder() as folder:
        installation = Installation(folder, arguments=["--engine", "echo"]).start()
        installation.stop()
        (installation.home / "admin.json").chmod(0o644)
        found = doctor({**installation.environment, "no_proxy": "*"})
    assert len(found["bad"]) == 1 and "admin.json can be read by others" in found["bad"][0]
    assert any("does not answer" in each for each in found["warn"])
