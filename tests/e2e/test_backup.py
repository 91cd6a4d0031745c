"""A backup of a running installation, restored into a new home: same keys, same nodes, audit chain whole."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_up import echo
from tests.support.databases import fresh_url
from tests.support.ends import sentence_of
from tests.support.installation import Installation, short_folder, until
from tests.support.members import Members


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.mark.timeout(180)
def test_a_restored_installation_goes_on_where_the_backup_was_made(folder: Path) -> None:
    old = Installation(folder / "old", arguments=["--engine", "echo"]).start()
    members = Members(old, folder)
    file = folder / "panal.backup"
    try:
        member = members.join()
        members.until_serving(member)
        assert echo(old)
        key, admin_key = old.key, old.admin_key
        until(lambda: old.run("usage", "totals")["requests"] >= 1, 15.0, "the record is in the store")
        wanted = {name: old.run(name, "list") for name in ("keys", "tokens")}
        nodes = {each["id"]: each["name"] for each in old.run("nodes", "list")}
        old.run("backup", str(file))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert old.run("backup", str(file), "--check")["rows"]["nodes"] == 2
        in_use = sentence_of(["restore", str(file)], old.environment)
        assert "not empty" in in_use and str(old.home) in in_use
        assert echo(old), "a backup and a refused restore disturb nothing"
    finally:
        old.stop()
    new = Installation(folder / "new", arguments=["--engine", "echo"])
    new.environment = old.environment | {"PANAL_HOME": str(new.home)}
    new.http_port = old.http_port
    new.run("restore", str(file))
    new.start()
    try:
        assert new.ready["api_key"] is None, "no new first keys"
        assert new.admin_key == admin_key
        assert echo(new, key)
        assert [each["id"] for each in new.run("tokens", "list")] == [each["id"] for each in wanted["tokens"]]
        assert [each["id"] for each in new.run("keys", "list")] == [each["id"] for each in wanted["keys"]]
        assert {each["id"]: each["name"] for each in new.run("nodes", "list")} == nodes
        members.installation = new
        members.until_serving(member)
        assert new.run("audit", "verify")["whole"]
        assert new.run("usage", "totals")["requests"] >= 2
    finally:
        members.close()
        new.stop()


@pytest.mark.postgres
@pytest.mark.timeout(180)
async def test_a_backup_goes_from_sqlite_to_postgresql_and_back(folder: Path) -> None:
    old = Installation(folder / "old", arguments=["--engine", "echo", "--no-node"]).start()
    key_ids = [each["id"] for each in old.run("keys", "list")]
    old.run("backup", str(folder / "one"))
    old.stop()
    async with fresh_url("postgresql", folder, migrated=False) as url:
        middle = Installation(folder / "middle", arguments=["--no-node"])
        middle.environment["PANAL_GATEWAY__STORE_URL"] = url
        middle.run("restore", str(folder / "one"))
        middle.start()
        assert [each["id"] for each in middle.run("keys", "list")] == key_ids
        middle.run("keys", "create", "made in the middle")
        middle.run("backup", str(folder / "two"))
        middle.stop()
    last = Installation(folder / "last", arguments=["--no-node"])
    last.run("restore", str(folder / "two"))
    last.start()
    try:
        assert len(last.run("keys", "list")) == len(key_ids) + 1
        assert last.run("audit", "verify")["whole"]
    finally:
        last.stop()
