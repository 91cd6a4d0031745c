"""P08 and P39 as ``panal up`` meets them: a database that is newer, or locked or away under load."""

import contextlib
import http.client
import json
import os
import shutil
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from panal.core.errors import PanalError
from panal.identity.api_keys import new_key
from tests.e2e.test_up import part
from tests.support.ends import sentence_of
from tests.support.installation import Installation, short_folder, until

SERVICES = Path(__file__).parents[2] / "scripts" / "services"
CLIENTS = 8
REQUESTS = 1_200
MEMORY_BYTES_MAX = 50 * 1024 * 1024
BODY = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "as always"}]})
UNKNOWN_KEY = new_key(lambda count: b"\x05" * count)


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.mark.timeout(120)
def test_p08_up_refuses_a_newer_database_and_leaves_it_as_it_is(folder: Path) -> None:
    installation = Installation(folder, arguments=["--engine", "echo"]).start()
    installation.stop()
    file = installation.home / "panal.db"
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.commit()
    before = file.read_bytes()
    sentence = sentence_of(["up", "--engine", "echo"], installation.environment)
    assert "newer panal" in sentence and "9999" in sentence
    assert file.read_bytes() == before
    with contextlib.closing(sqlite3.connect(file)) as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]


def post(connection: http.client.HTTPConnection, key: str) -> int:
    connection.request(
        "POST",
        "/v1/chat/completions",
        BODY,
        {"authorization": f"Bearer {key}", "content-type": "application/json"},
    )
    answer = connection.getresponse()
    answer.read()
    return answer.status


def asked(installation: Installation, count: int, key: str) -> Counter[int]:
    """Statuses of so many requests by several clients at once."""

    def client(_number: int) -> list[int]:
        connection = http.client.HTTPConnection("127.0.0.1", installation.http_port, timeout=60)
        try:
            return [post(connection, key) for _ in range(count // CLIENTS)]
        finally:
            connection.close()

    with ThreadPoolExecutor(CLIENTS) as pool:
        return Counter(status for each in pool.map(client, range(CLIENTS)) for status in each)


def readiness(installation: Installation) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", installation.http_port, timeout=60)
    try:
        connection.request("GET", "/ready")
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def degraded(installation: Installation) -> bool:
    return readiness(installation)[1].get("status") == "degraded"


def counted(installation: Installation) -> int:
    """Usage records in the store; -1 while it cannot be asked."""
    with contextlib.suppress(PanalError):
        return int(installation.admin().get("/api/v1/usage/totals")["requests"])
    return -1


def through_an_outage(installation: Installation, away: Callable[[], None], back: Callable[[], None]) -> None:
    """Known keys go on, memory stays, nothing is lost or counted twice."""
    key = installation.key
    assert asked(installation, CLIENTS * 20, key) == {200: CLIENTS * 20}, "warm"
    gateway = psutil.Process(part(installation, "gateway").pid)
    memory_bytes = gateway.memory_info().rss
    away()
    statuses = asked(installation, REQUESTS, key)
    assert statuses == {200: REQUESTS}
    assert gateway.memory_info().rss - memory_bytes < MEMORY_BYTES_MAX
    kept_bytes = sum(path.stat().st_size for path in (installation.home / "spool").glob("*.jsonl"))
    assert kept_bytes > REQUESTS * 100, "what the store cannot take is on the disk"
    back()
    wanted = REQUESTS + CLIENTS * 20
    until(lambda: counted(installation) >= wanted, 45.0, "every record is in the store")
    assert counted(installation) == wanted
    until(lambda: readiness(installation)[1].get("status") == "ready", 20.0, "it is ready again")
    spool = installation.home / "spool"
    until(lambda: not list(spool.glob("*.jsonl")), 20.0, "nothing waits any more")
    assert not list(spool.glob("*.damaged"))


@pytest.mark.timeout(240)
def test_p39_a_locked_sqlite_file_costs_no_request_and_no_record(folder: Path) -> None:
    installation = Installation(folder, arguments=["--engine", "echo"]).start()
    try:
        with contextlib.closing(
            sqlite3.connect(installation.home / "panal.db", isolation_level=None)
        ) as other:

            def lock() -> None:
                other.execute("BEGIN IMMEDIATE")

            through_an_outage(installation, lock, lambda: other.execute("ROLLBACK") and None)
    finally:
        installation.stop()


@contextlib.contextmanager
def own_postgresql(folder: Path) -> Iterator[Callable[[str], str]]:
    """A server of this test alone, to be paused and resumed."""
    if shutil.which("runuser") is None and os.geteuid() == 0:
        pytest.skip("a PostgreSQL server cannot be started by root without runuser")
    folder.chmod(0o755)
    services = folder / "pg"

    def call(word: str) -> str:
        done = subprocess.run(
            ["bash", str(SERVICES), word],
            env={**os.environ, "PANAL_SERVICES": str(services)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=True,
        )
        return done.stdout

    call("start")
    try:
        yield call
    finally:
        call("stop")


@pytest.mark.postgres
@pytest.mark.timeout(300)
def test_p39_a_postgresql_that_is_away_costs_no_request_and_no_record(folder: Path) -> None:
    with own_postgresql(folder) as services:
        url = (folder / "pg" / "postgres.url").read_text().strip()
        environment = {"PANAL_GATEWAY__STORE_URL": url}
        installation = Installation(folder, arguments=["--engine", "echo"], environment=environment).start()
        try:

            def away() -> None:
                services("pause")
                until(lambda: degraded(installation), 20.0, "it says that something is missing")
                status, said = readiness(installation)
                assert status == 200, "known keys are still served"
                assert [reason["code"] for reason in said["reasons"]] == ["store_unavailable"]

            def back() -> None:
                until(lambda: asked_once(installation, UNKNOWN_KEY) == 503, 15.0, "in doubt it is no 401")
                services("resume")

            def asked_once(installation: Installation, key: str) -> int:
                connection = http.client.HTTPConnection("127.0.0.1", installation.http_port, timeout=60)
                try:
                    return post(connection, key)
                finally:
                    connection.close()

            through_an_outage(installation, away, back)
        finally:
            installation.stop()
