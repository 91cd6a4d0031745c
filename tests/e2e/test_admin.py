"""Every admin command against a running installation: words, JSON, and one sentence for what is wrong."""

import contextlib
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from panal.cli.api_client import Api
from panal.cli.main import main
from tests.support.ends import the_sentence
from tests.support.installation import Installation, short_folder, until

NODE = "NODE"
"""Stands for the name of the one node in the commands below."""


@pytest.fixture(scope="module")
def place() -> Iterator[Installation]:
    with short_folder() as made:
        installation = Installation(made, arguments=["--engine", "echo"]).start()
        try:
            yield installation
        finally:
            installation.stop()


@pytest.fixture(scope="module")
def node(place: Installation) -> str:
    return str(place.run("nodes", "list")[0]["name"])


def panal(place: Installation, *arguments: str) -> tuple[int, str, str]:
    """A command in this process: status, what it printed, what it complained."""
    printed, complained = io.StringIO(), io.StringIO()
    status = 0
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PANAL_")}
    with (
        patch.object(sys, "argv", ["panal", *arguments]),
        patch.dict(os.environ, {**environment, **place.environment}, clear=True),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(complained),
    ):
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
    return status, printed.getvalue(), complained.getvalue()


def good(place: Installation, *arguments: str) -> str:
    status, printed, complained = panal(place, *arguments)
    assert status == 0, complained
    return printed


def good_json(place: Installation, *arguments: str) -> Any:
    return json.loads(good(place, *arguments, "--json"))


def bad(place: Installation, *arguments: str) -> str:
    """The sentence; nothing may be printed as if it were an answer."""
    status, printed, complained = panal(place, *arguments)
    assert status != 0, printed
    assert printed == ""
    return the_sentence(complained)


# --- the commands ------------------------------------------------------------------------------------


def test_join_tokens(place: Installation) -> None:
    made = good_json(place, "tokens", "create", "--class", "workstation", "--expires", "30m", "--uses", "2")
    assert made["token"].startswith("pnl1_")
    words = good(place, "tokens", "create").strip()
    assert re.fullmatch(r"pnl1_\S+", words)
    token = made["view"]["id"]
    listed = {each["id"]: each for each in good_json(place, "tokens", "list")}
    assert listed[token]["uses_left"] == 2
    assert made["token"] not in json.dumps(list(listed.values()))
    assert token in good(place, "tokens", "list")
    assert token in good(place, "tokens", "revoke", token)
    assert good_json(place, "tokens", "revoke", token)["state"] == "revoked"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--class", "spaceship"], "node_class"),
        (["--expires", "soon"], "length of time"),
        (["--expires", "25h"], "24"),
        (["--expires", "0s"], ""),
        (["--uses", "0"], "uses"),
        (["--country", "Spain"], "country"),
        (["--data-class", "cosmic"], "cosmic"),
    ],
)
def test_a_wrong_wish_for_a_token_is_told(place: Installation, arguments: list[str], words: str) -> None:
    assert words in bad(place, "tokens", "create", *arguments)


def test_nodes(place: Installation, node: str) -> None:
    [row] = good_json(place, "nodes", "list")
    assert (row["name"], row["membership"], row["liveness"]) == (node, "active", "live")
    assert node in good(place, "nodes", "list")
    shown = good_json(place, "nodes", "show", node)
    assert shown["id"] == row["id"]
    assert row["id"] in good(place, "nodes", "show", row["id"])
    cordoned = good(place, "nodes", "cordon", node, "--reason", "for repair")
    assert cordoned == f"{node} is cordoned now\n"
    assert good_json(place, "nodes", "show", node)["reason"]
    assert good_json(place, "nodes", "drain", node)["membership"] == "draining"
    assert good_json(place, "nodes", "uncordon", node)["membership"] == "active"
    assert "active" in good(place, "nodes", "uncordon", node)
    until(lambda: good_json(place, "models", "list")[0]["nodes"] == [node], 20, "it serves again")


@pytest.mark.parametrize("verb", ["show", "approve", "cordon", "uncordon", "drain", "revoke"])
def test_an_unknown_node_is_told(place: Installation, verb: str) -> None:
    assert bad(place, "nodes", verb, "no such node?") == "There is no such node."
    for text in ("no/such", "..", ""):
        assert "neither a name nor an id" in bad(place, "nodes", verb, text)


def test_approving_an_active_node_is_refused_or_changes_nothing(place: Installation, node: str) -> None:
    assert good_json(place, "nodes", "approve", node)["membership"] == "active"


def test_keys(place: Installation) -> None:
    secret = good(place, "keys", "create", "for tests", "--role", "operator", "--expires", "1d").strip()
    assert secret.startswith("sk-panal-")
    made = good_json(place, "keys", "create", "another", "--residency", "ES", "--principal", "someone")
    key = made["view"]["id"]
    listed = {each["id"]: each for each in good_json(place, "keys", "list")}
    assert listed[key]["name"] == "another"
    assert secret not in json.dumps(list(listed.values()))
    assert key in good(place, "keys", "list")
    assert Api(place.url, secret).get("/api/v1/whoami")["role"] == "operator"
    assert key in good(place, "keys", "revoke", key)
    assert good_json(place, "keys", "revoke", key)["state"] == "revoked"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "--role", "king"], "role"),
        (["create", "--expires", "tomorrow"], "length of time"),
        (["create", "--data-class", "cosmic"], "cosmic"),
        (["create", "--residency", "Spain"], "countries"),
        (["revoke", "key_unknown"], "no such"),
    ],
)
def test_a_wrong_wish_for_a_key_is_told(place: Installation, arguments: list[str], words: str) -> None:
    assert words in bad(place, "keys", *arguments)


def test_models_usage_audit_and_status(place: Installation, node: str) -> None:
    told = good_json(place, "chat", "hello there")
    assert (told["nodes"], told["finish"]) == ([node], "stop")
    words = good(place, "chat", "hello there")
    assert f"[{node}]" in words and "hello there" in words
    assert good_json(place, "models", "list") == [{"model": "echo", "aliases": [], "nodes": [node]}]
    assert "echo" in good(place, "models", "list")
    until(lambda: len(good_json(place, "usage", "list")) >= 2, 20, "both requests are in the store")
    assert "complete" in good(place, "usage", "list", "--limit", "1")
    assert good_json(place, "usage", "totals")["requests"] >= 2
    assert "requests" in good(place, "usage", "totals")
    assert any(event["action"] == "node.join" for event in good_json(place, "audit", "list"))
    assert "node.join" in good(place, "audit", "list", "--limit", "1000")
    assert good_json(place, "audit", "verify")["whole"] is True
    assert "yes" in good(place, "audit", "verify")
    assert good_json(place, "status")["models"] == ["echo"]
    assert node in good(place, "status") and place.url in good(place, "status")
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", good(place, "version").strip())
    assert good_json(place, "version")["version"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["usage", "list", "--limit", "0"], "limit"),
        (["audit", "list", "--limit", "5000"], "limit"),
        (["chat", "hello", "--model", "gpt-17"], "gpt-17"),
        (["desk", "pause", "--for", "ever"], "length of time"),
        (["desk", "pause", "--for", "0s"], "pause"),
        (["config", "show", "--config", "/no/such.toml"], "/no/such.toml"),
        (["status", "--url", "ftp://somewhere"], "ftp://somewhere"),
        (["status", "--url", "http://gpu.example.com:7080"], "in the clear"),
        (["status", "--url", "http://127.0.0.1:notaport"], "notaport"),
    ],
)
def test_a_wrong_wish_is_told(place: Installation, arguments: list[str], words: str) -> None:
    assert words in bad(place, *arguments)


def test_settings(place: Installation, tmp_path: Path) -> None:
    rows = {row["setting"]: row for row in good_json(place, "config", "show")}
    assert rows["gateway.http_port"]["value"] == str(place.http_port)
    assert "PANAL_GATEWAY__HTTP_PORT" in rows["gateway.http_port"]["source"]
    assert "gateway.http_port" in good(place, "config", "show")
    assert good(place, "config", "check").startswith("good")
    assert good_json(place, "config", "check")["faults"] == []
    file = tmp_path / "panal.toml"
    file.write_text("[gateway]\nhttp_prot = 1\nhttp_host = '0.0.0.0'\n")
    status, printed, _ = panal(place, "config", "check", "--config", str(file))
    assert status == 1
    assert len(printed.splitlines()) == 2 and "http_port" in printed
    status, printed, _ = panal(place, "config", "check", "--config", str(file), "--json")
    assert status == 1 and len(json.loads(printed)["faults"]) == 2


def test_the_owners_switch(place: Installation, node: str) -> None:
    assert "paused until you resume it" in good(place, "desk", "pause")

    def state() -> str:
        return str(good_json(place, "desk", "status")["status"]["state"])

    until(lambda: state() == "owner", 20, "the agent says that it is its owner's")
    assert "paused" in good(place, "desk", "status")
    assert good_json(place, "desk", "resume") == {"was_paused": True}
    assert good(place, "desk", "resume") == "it was not paused\n"
    assert good_json(place, "desk", "pause", "--for", "1h")["until_utc_s"]
    assert good(place, "desk", "resume") == "resumed\n"
    until(lambda: good_json(place, "models", "list")[0]["nodes"] == [node], 30, "it serves again")


# --- what they need, and what not --------------------------------------------------------------------


def test_no_command_opens_the_store(place: Installation, tmp_path: Path) -> None:
    """A copy of the admin access is all they need: the home with the store may be anywhere."""
    home = tmp_path / "elsewhere"
    home.mkdir()
    (home / "admin.json").write_bytes((place.home / "admin.json").read_bytes())
    for command in (
        ["nodes", "list"],
        ["keys", "list"],
        ["audit", "verify"],
        ["usage", "totals"],
        ["status"],
    ):
        good(place, *command, "--home", str(home))
    assert [path.name for path in home.iterdir()] == ["admin.json"]


def test_reading_works_while_somebody_holds_the_store(place: Installation) -> None:
    with contextlib.closing(sqlite3.connect(place.home / "panal.db", isolation_level=None)) as held:
        held.execute("BEGIN IMMEDIATE")
        assert good(place, "status")
        assert good(place, "nodes", "list")
        held.execute("ROLLBACK")


@pytest.mark.parametrize(
    "command",
    [["status"], ["nodes", "list"], ["tokens", "create"], ["usage", "totals"], ["chat", "hello"]],
    ids=lambda words: "-".join(words),
)
def test_a_gateway_that_is_not_there_is_told(place: Installation, command: list[str]) -> None:
    sentence = bad(place, *command, "--url", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9" in sentence and "panal up" in sentence


def test_a_home_without_installation_is_told(place: Installation, tmp_path: Path) -> None:
    for command in (["status"], ["nodes", "list"]):
        assert str(tmp_path) in bad(place, *command, "--home", str(tmp_path))
    assert str(tmp_path) in bad(place, "desk", "status", "--home", str(tmp_path))
    (tmp_path / "admin.json").write_text("{")
    assert "admin.json" in bad(place, "status", "--home", str(tmp_path))


def test_a_key_without_the_role_is_told(place: Installation) -> None:
    environment = {"PANAL_URL": place.url, "PANAL_API_KEY": place.key}
    with patch.dict(place.environment, environment):
        assert "admin" in bad(place, "tokens", "create")
        assert "operator" in bad(place, "nodes", "list")
        assert good(place, "status")
    with patch.dict(place.environment, {**environment, "PANAL_API_KEY": "sk-panal-wrong"}):
        assert "key" in bad(place, "status")
    with patch.dict(place.environment, {**environment, "PANAL_CA_FILE": "/no/such.pem"}):
        assert "/no/such.pem" in bad(place, "status")


def test_https_with_the_installations_own_ca(place: Installation, tmp_path: Path) -> None:
    secure = place.ready["secure_endpoint"].removesuffix("/v1")
    environment = {"PANAL_URL": secure, "PANAL_API_KEY": place.key, "PANAL_CA_FILE": str(place.ca_file)}
    with patch.dict(place.environment, environment):
        assert good_json(place, "status")["models"] == ["echo"]
        assert good_json(place, "chat", "over TLS")["finish"] == "stop"
    del environment["PANAL_CA_FILE"]
    with patch.dict(place.environment, environment):
        assert "certificate" in bad(place, "status")
    other = tmp_path / "bad.pem"
    other.write_text("no certificate")
    with patch.dict(place.environment, {**environment, "PANAL_CA_FILE": str(other)}):
        assert "bad.pem" in bad(place, "status")


def test_a_program_of_its_own_behaves_the_same(place: Installation) -> None:
    """The commands above ran inside the test; the installed program does the same."""
    for arguments, status in ((["nodes", "list", "--json"], 0), (["nodes", "show", "nobody"], 1)):
        done = subprocess.run(
            [sys.executable, "-m", "panal", *arguments],
            env={**os.environ, **place.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status
        if status:
            assert the_sentence(done.stderr) == "There is no such node."
        else:
            assert json.loads(done.stdout)


# --- OpenAPI -----------------------------------------------------------------------------------------


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_the_openapi_document_is_whole(place: Installation) -> None:
    document = place.admin().get("/api/v1/openapi.json")
    assert document["openapi"].startswith("3.1")
    assert set(document["info"]) >= {"title", "version"}
    schemas = document["components"]["schemas"]
    for reference in references(document):
        prefix, _, name = reference.rpartition("/")
        assert prefix == "#/components/schemas" and name in schemas, reference
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name), name
    names: list[str] = []
    for path, operations in document["paths"].items():
        assert path.startswith("/api/v1/")
        for method, operation in operations.items():
            assert method in ("get", "post", "put", "patch", "delete")
            names.append(operation["operationId"])
            assert operation["summary"]
            declared = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert declared == set(re.findall(r"{(\w+)}", path))
            assert operation["security"] == [{"key": []}]
            assert all(each["description"] for each in operation["responses"].values())
    assert len(names) == len(set(names))


def test_every_operation_of_the_document_exists_and_needs_its_role(place: Installation) -> None:
    """As a generated client would call it, without a key: 401, never 404 or 405."""
    import http.client

    document = place.admin().get("/api/v1/openapi.json")
    connection = http.client.HTTPConnection("127.0.0.1", place.http_port, timeout=10)
    with contextlib.closing(connection):
        for path, operations in document["paths"].items():
            for method in operations:
                connection.request(method.upper(), re.sub(r"{\w+}", "x", path))
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 401, (method, path)


def test_answers_have_the_shape_that_the_document_says(place: Installation) -> None:
    """Every GET without a parameter in its path, against its own schema."""
    document = place.admin().get("/api/v1/openapi.json")
    for path, operations in document["paths"].items():
        operation = operations.get("get")
        if operation is None or "{" in path or "content" not in operation["responses"]["200"]:
            continue
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        fits(place.admin().get(path), schema, document, path)


def fits(value: Any, schema: dict[str, Any], document: dict[str, Any], where: str) -> None:
    """Enough of JSON Schema for what we say of ourselves."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        kinds = {each.get("type") for each in schema["anyOf"]}
        assert (value is None) == ("null" in kinds and value is None), where
        if value is None:
            return
        schema = next(each for each in schema["anyOf"] if each.get("type") != "null")
        fits(value, schema, document, where)
        return
    python: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
    }
    if "type" in schema:
        assert isinstance(value, python[schema["type"]]), (where, value, schema)
    for name in schema.get("required", []):
        assert name in value, (where, name)
    for name, inner in schema.get("properties", {}).items():
        if name in value:
            fits(value[name], inner, document, f"{where}.{name}")
    if isinstance(value, list):
        for each in value:
            fits(each, schema.get("items", {}), document, f"{where}[]")


def test_old_usage_goes_and_new_usage_stays(place: Installation) -> None:
    file = place.home / "panal.db"
    database = sqlite3.connect(file, timeout=30.0)
    try:
        names = [row[1] for row in database.execute("PRAGMA table_info(usage_records)")]
        values = {"request_id": "'req_old_' || i", "created_utc_us": "1000000 + i"}
        texts = {"tenant_id": "'tnt_default'", "model": "'m'", "route": "'chat'", "outcome": "'complete'"}
        numbers = [name for name in names if name.endswith(("_tokens", "_us", "attempts", "ed", "ial"))]
        known = dict.fromkeys(numbers, "0") | texts | values
        chosen = ", ".join(known.get(name, "'x'") for name in names)
        count = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1700)"
        with database:
            database.execute(f"INSERT INTO usage_records ({', '.join(names)}) {count} SELECT {chosen} FROM n")
    finally:
        database.close()
    before = good_json(place, "usage", "totals")["requests"]
    assert "1700 usage records are older" in good(
        place, "usage", "prune", "--older-than", "400d", "--dry-run"
    )
    pruned = good_json(place, "usage", "prune", "--older-than", "400d")
    assert (pruned["found"], pruned["removed"], pruned["stopped"]) == (1700, 1700, False)
    assert good_json(place, "usage", "totals")["requests"] == before - 1700
    assert good(place, "usage", "prune", "--older-than", "1w").startswith("0 usage records")
    events = [event["action"] for event in good_json(place, "audit", "list")]
    assert events.count("usage.prune") == 1
    assert good_json(place, "audit", "verify")["whole"]


@pytest.mark.parametrize("age", ["0d", "400", "d", "-1d", "1y"])
def test_a_wrong_age_is_told(place: Installation, age: str) -> None:
    assert "400d" in bad(place, "usage", "prune", "--older-than", age)
