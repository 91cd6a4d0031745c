"""The level of the logs of running programs follows the settings file when ``panal up`` is told to look."""

import json
import signal
from pathlib import Path

import pytest

from tests.support.installation import Installation, short_folder, until


def levels(file: Path) -> set[str]:
    return {json.loads(line)["level"] for line in file.read_text().splitlines()}


@pytest.mark.timeout(120)
def test_the_level_of_gateway_and_agent_changes_without_a_restart() -> None:
    with short_folder() as folder:
        installation = Installation(folder, arguments=["--engine", "echo"])
        file = installation.home / "panal.toml"
        file.parent.mkdir()
        file.write_text('[log]\nlevel = "error"\n')
        logs = [
            installation.home / "logs" / "gateway.log",
            installation.home / "agent" / "logs" / "agent.log",
        ]
        installation.start()

        def told(level: str, action: str, count: int) -> None:
            file.write_text(f'[log]\nlevel = "{level}"\n')
            assert installation.program is not None
            installation.program.process.send_signal(signal.SIGHUP)
            for log in logs:
                until(
                    lambda log=log: log.exists() and log.read_text().count(f'"{action}"') == count,
                    15.0,
                    f"{log.name} says {action}",
                )  # type: ignore[misc]

        try:
            assert all(not log.exists() or levels(log) <= {"error"} for log in logs)
            told("info", "log_level", 1)
            installation.admin().post("/v1/chat/completions", echo_body())
            until(lambda: "request_ended" in logs[0].read_text(), 10.0, "requests are written now")
            told("loud", "log_level_kept", 1)
            assert installation.program is not None and installation.program.process.poll() is None
        finally:
            installation.stop()


def echo_body() -> dict[str, object]:
    return {"model": "echo", "messages": [{"role": "user", "content": "x"}]}
