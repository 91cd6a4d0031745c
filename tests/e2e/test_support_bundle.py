"""A support bundle of a running installation: fleet, metrics, audit, logs, and no secret."""

import contextlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from panal.cli.api_client import Api, ApiRefused
from tests.support.installation import Installation, short_folder

PROMPT = "canary of a person's prompt"


@pytest.mark.timeout(120)
def test_a_bundle_of_a_running_installation_tells_much_and_nothing_secret() -> None:
    environment = {"PANAL_LOG__LEVEL": "debug"}
    with short_folder() as folder:
        place = Installation(folder, arguments=["--engine", "echo"], environment=environment).start()
        try:
            body = {"model": "echo", "messages": [{"role": "user", "content": PROMPT}]}
            Api(place.url, place.key).post("/v1/chat/completions", body)
            token = place.run("tokens", "create", "--class", "dedicated")["token"]
            with contextlib.suppress(ApiRefused):
                Api(place.url, token).get("/v1/models")
            file = folder / "support.tar"
            parts = place.run("support-bundle", str(file))["parts"]
        finally:
            place.stop()
        node = json.loads((place.home / "agent" / "node.json").read_text())
        seeds = json.loads((place.home / "nats" / "authority.json").read_text())["seeds"].values()
        secrets = [PROMPT, "canary", place.key, place.admin_key, token, node["key_seed"], node["credential"]]
        content = file.read_bytes()
        for secret in [*secrets, *seeds, "PRIVATE KEY"]:
            assert secret.encode() not in content
        wanted = {
            "fleet.json",
            "audit.json",
            "metrics.txt",
            "logs/gateway.log",
            "logs/agent.log",
            "doctor.json",
        }
        assert wanted <= set(parts)
        with tarfile.open(file) as archive:
            read = {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]
        assert json.loads(read["panal-support/fleet.json"])["models"] == ["echo"]
        assert json.loads(read["panal-support/audit.json"])["whole"]
        assert b"panal_requests" in read["panal-support/metrics.txt"]
        stopped(place, folder / "stopped.tar")


def stopped(place: Installation, file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "panal", "support-bundle", str(file)],
        env={**os.environ, **place.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"does not answer" in file.read_bytes()
