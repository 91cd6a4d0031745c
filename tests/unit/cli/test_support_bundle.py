"""A support bundle holds no secret, wherever one stood, and is bounded."""

import base64
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from panal.bus.authority_file import authority_path, create_or_load_authority
from panal.bus.nkeys import KeyKind, SigningKey
from panal.cli.doctor.judgement import Finding
from panal.cli.home import AdminAccess, Home
from panal.cli.support_bundle import PART_BYTES_MAX, Veil, bundle
from panal.core.clock import SystemClock
from panal.core.settings import load
from panal.identity.api_keys import new_key
from panal.identity.certificates import create_or_load_ca

PASSWORD = "hunter2-of-the-store"
PROXY_PASSWORD = "hunter3-of-the-proxy"
TRACES_TOKEN = "dt0c01.collector-token"
ENGINE_KEY = "engine-key-engine-key"
TOKEN = "pnl1_abcdefghij_" + "a" * 32 + "_" + "0" * 32
CLAIMS = "eyJhbGciOiJlZDI1NTE5In0.eyJzdWIiOiJ1c2VyIn0.c2lnbmF0dXJl"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.make()
    made.pepper(os.urandom)
    create_or_load_ca(made.path, SystemClock())
    create_or_load_authority(authority_path(made.path), SystemClock(), os.urandom)
    made.save_admin_access(AdminAccess("http://127.0.0.1:7080", new_key(os.urandom)))
    made.agent.mkdir()
    seed = SigningKey.create(KeyKind.USER, os.urandom).seed()
    (made.agent / "node.json").write_text(
        json.dumps({"key_seed": seed, "credential": CLAIMS, "name": "desk"})
    )
    return made


def secrets(home: Home) -> list[str]:
    """Every secret text of the home, taken from its files."""
    authority = json.loads(authority_path(home.path).read_text())
    node = json.loads((home.agent / "node.json").read_text())
    pepper = (home.path / "secrets" / "pepper").read_bytes()
    key_lines = (home.path / "ca" / "ca.pem").read_text().partition("PRIVATE KEY-----\n")[2].splitlines()[:2]
    return [
        *authority["seeds"].values(),
        node["key_seed"],
        CLAIMS,
        json.loads(home.admin_file.read_text())["key"],
        new_key(lambda count: b"\5" * count),
        TOKEN,
        PASSWORD,
        ENGINE_KEY,
        pepper.hex(),
        *key_lines,
    ]


def test_no_secret_is_in_it_wherever_it_stood(home: Home, tmp_path: Path) -> None:
    environment = {
        "PANAL_GATEWAY__STORE_URL": f"postgresql://panal:{PASSWORD}@db/panal",
        "PANAL_ENGINE_KEY": ENGINE_KEY,
        "PANAL_NODE__PROXY": f"http://desk:{PROXY_PASSWORD}@proxy.example.com:3128",
        "HTTPS_PROXY": "panal:of%20the%20shell@proxy.example.com",
        "PANAL_TELEMETRY__TRACES_HEADERS": f"authorization=Api-Token {TRACES_TOKEN},x-team=payments",
    }
    marked = secrets(home)
    on_the_way = [
        PROXY_PASSWORD,
        base64.b64encode(f"desk:{PROXY_PASSWORD}".encode()).decode(),
        "of the shell",
        "of%20the%20shell",
        TRACES_TOKEN,
    ]
    key = (home.path / "ca" / "ca.pem").read_text()
    lines = [
        *(f"it said {each} aloud" for each in (*marked, *on_the_way)),
        f"Bearer {base64.b64encode(b'x' * 30).decode()}",
        key,
    ]
    for log in (
        home.logs / "gateway.log",
        home.agent / "logs" / "agent.log",
        home.path / "nats" / "server.log",
    ):
        log.parent.mkdir(exist_ok=True)
        log.write_text("\n".join(["a harmless line", *lines]))
    (home.agent / "engine").mkdir()
    (home.agent / "engine" / "engine.log").write_text("prompt: canary of a person")
    file = tmp_path / "support.tar"
    finding = Finding("bad", f"cannot reach postgresql://panal:{PASSWORD}@db/panal with {marked[0]}")
    names = bundle(home, load(None, environment), environment, [finding], None, file, SystemClock())
    content = file.read_bytes()
    for secret in [*marked, *on_the_way, "canary", "PRIVATE KEY", base64.b64encode(b"x" * 30).decode()]:
        assert secret.encode() not in content, secret
    assert content.count(b"a harmless line") == 3
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {"versions.json", "doctor.json", "settings.json", "gateway.txt", "logs/server.log"} <= set(names)


def test_it_is_bounded_and_holds_the_ends_of_logs(home: Home, tmp_path: Path) -> None:
    home.logs.mkdir()
    line = "x" * 99 + "\n"
    (home.logs / "gateway.log").write_text("sk-panal-" + line * 100_000 + "the last line\n")
    file = tmp_path / "support.tar"
    bundle(home, load(None, {}), {}, [], None, file, SystemClock())
    assert file.stat().st_size < 2 * PART_BYTES_MAX
    with tarfile.open(file) as archive:
        log = archive.extractfile("panal-support/logs/gateway.log").read()  # type: ignore[union-attr]
    assert log.endswith(b"the last line\n") and log.startswith(b"x" * 99)


def test_what_is_harmless_stays() -> None:
    text = '{"action": "request_ended", "node": "node_01", "url": "https://gpu.example.com:7443/v1"}'
    assert Veil(["short", "a-secret-of-some-length"]).over(text) == text


def test_an_empty_home_gives_a_bundle_too(tmp_path: Path) -> None:
    names = bundle(Home(tmp_path / "none"), load(None, {}), {}, [], None, tmp_path / "b", SystemClock())
    assert names == ["versions.json", "doctor.json", "settings.json", "gateway.txt"]
