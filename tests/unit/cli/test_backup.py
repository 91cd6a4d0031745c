"""A backup's file: what is in it, who may read it, and which files are refused."""

import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from panal.bus.authority_file import authority_path, create_or_load_authority
from panal.cli.backup import MANIFEST, STORE, backup, check, restore
from panal.cli.home import Home
from panal.core.clock import SystemClock
from panal.core.errors import SettingsError
from panal.core.settings import Settings, load
from panal.identity.certificates import create_or_load_ca
from panal.store import open_store

NOTHING: dict[str, str] = {}


@pytest.fixture
async def home(tmp_path: Path) -> Home:
    """An installation as it is after its first start, without programs."""
    made = Home(tmp_path / "home")
    made.make()
    made.pepper(os.urandom)
    create_or_load_ca(made.path, SystemClock())
    create_or_load_authority(authority_path(made.path), SystemClock(), os.urandom)
    await (await open_store(made.store_url(Settings()))).close()
    made.spool.mkdir()
    (made.spool / "000000000001.jsonl").write_text('{"kept": true}\n')
    (made.spool / "2").mkdir()
    (made.spool / "2" / "000000000007.jsonl").write_text('{"of": "process 2"}\n')
    made.settings_file.write_text("[gateway]\nhttp_port = 7081\n")
    return made


@pytest.fixture
async def file(home: Home, tmp_path: Path) -> Path:
    made = tmp_path / "kept" / "panal.backup"
    await backup(home, Settings(), None, made, SystemClock())
    return made


def settings_of(home: Home) -> Callable[[], Settings]:
    return lambda: home.settings(None, NOTHING)


async def test_a_backup_is_for_its_owner_only_and_leaves_no_draft(file: Path, home: Home) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]
    manifest = check(file)
    assert manifest.rows["tenants"] == 1
    assert {"secrets/pepper", "ca/ca.pem", "panal.toml", "spool/000000000001.jsonl"} <= manifest.files.keys()
    assert "ca/gateway-key.pem" not in manifest.files


async def test_a_restored_home_has_the_same_secrets_settings_and_spool(
    file: Path, home: Home, tmp_path: Path
) -> None:
    new = Home(tmp_path / "new")
    await restore(file, new, settings_of(new))
    for name in (
        "secrets/pepper",
        "ca/ca.pem",
        "nats/authority.json",
        "spool/000000000001.jsonl",
        "spool/2/000000000007.jsonl",
    ):
        assert (new.path / name).read_bytes() == (home.path / name).read_bytes()
        assert stat.S_IMODE((new.path / name).stat().st_mode) == 0o600
    assert load(new.settings_file, NOTHING).gateway.http_port == 7081
    await (await open_store(new.store_url(Settings()))).close()


async def test_a_home_that_is_not_empty_is_left_alone(file: Path, home: Home, tmp_path: Path) -> None:
    before = sorted(home.path.rglob("*"))
    with pytest.raises(SettingsError, match="not empty"):
        await restore(file, home, settings_of(home))
    assert sorted(home.path.rglob("*")) == before
    (tmp_path / "a-file").write_text("mine")
    with pytest.raises(SettingsError, match="not empty"):
        await restore(file, Home(tmp_path / "a-file"), settings_of(home))


async def test_no_installation_is_nothing_to_back_up(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no installation"):
        await backup(Home(tmp_path / "none"), Settings(), None, tmp_path / "b", SystemClock())
    assert list(tmp_path.iterdir()) == []


Members = dict[str, bytes]


def rewritten(file: Path, change: Callable[[Members], None], mode: str = "w") -> Path:
    """The same backup with other content, its manifest as it was unless ``change`` says otherwise."""
    with tarfile.open(file) as archive:
        members = {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]
    change(members)
    made = file.with_name("changed")
    with tarfile.open(made, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made


def other_pepper(members: Members) -> None:
    members["secrets/pepper"] = bytes(32)


def other_row(members: Members) -> None:
    members[STORE] = members[STORE].replace(b'"default"', b'"changed"')


def fewer_rows(members: Members) -> None:
    manifest = msgspec.json.decode(members[MANIFEST])
    manifest["rows"]["tenants"] = 2
    members[MANIFEST] = msgspec.json.encode(manifest)


def no_manifest(members: Members) -> None:
    del members[MANIFEST]


def no_pepper(members: Members) -> None:
    del members["secrets/pepper"]


def listed(name: str) -> Callable[[Members], None]:
    def change(members: Members) -> None:
        manifest = msgspec.json.decode(members[MANIFEST])
        manifest["files"][name] = manifest["files"]["panal.toml"]
        members[MANIFEST] = msgspec.json.encode(manifest)
        members[name] = members["panal.toml"]

    return change


def newer(members: Members) -> None:
    members[MANIFEST] = members[MANIFEST].replace(b'"version": 1', b'"version": 2')


@pytest.mark.parametrize(
    "change",
    [
        other_pepper,
        other_row,
        fewer_rows,
        no_manifest,
        no_pepper,
        listed("../outside"),
        listed("agent/../../outside"),
        listed("/outside"),
        listed("spool/x.jsonl"),
        listed("ca/gateway-key.pem"),
        newer,
    ],
)
async def test_a_file_that_fails_its_check_is_not_restored(
    file: Path, tmp_path: Path, change: Callable[[Members], None]
) -> None:
    changed = rewritten(file, change)
    with pytest.raises(SettingsError):
        check(changed)
    new = Home(tmp_path / "new")
    with pytest.raises(SettingsError):
        await restore(changed, new, settings_of(new))
    assert not new.path.exists() and not (tmp_path / "outside").exists()


def test_what_is_no_backup_is_refused_with_a_sentence(file: Path) -> None:
    cut = file.with_name("cut")
    cut.write_bytes(file.read_bytes()[:3000])
    compressed = rewritten(file, lambda _: None, "w:gz")
    empty = file.with_name("empty")
    empty.write_bytes(b"")
    for each in (cut, compressed, empty, file.with_name("missing")):
        with pytest.raises(SettingsError, match=r"no backup of panal|cannot be read|does not hold|damaged"):
            check(each)


async def test_a_failed_restore_leaves_an_empty_home(file: Path, tmp_path: Path) -> None:
    new = Home(tmp_path / "new")
    new.path.mkdir()

    def wrong() -> Settings:
        return load(None, {"PANAL_GATEWAY__STORE_URL": "mysql://nothing"})

    with pytest.raises(SettingsError):
        await restore(file, new, wrong)
    assert list(new.path.iterdir()) == []
