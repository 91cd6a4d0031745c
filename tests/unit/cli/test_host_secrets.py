"""Secrets for a second gateway host: sealed, opened with the code only, and never put over others."""

import os
from pathlib import Path

import pytest

from panal.bus.authority_file import authority_path, create_or_load_authority, save_revocations
from panal.bus.nkeys import KeyKind, SigningKey
from panal.cli.home import AdminAccess, Home
from panal.cli.host_secrets import export, import_
from panal.core.clock import ManualClock
from panal.core.errors import SettingsError
from panal.core.ids import NodeKey
from panal.core.settings import Settings, load
from panal.identity.certificates import create_or_load_ca

POSTGRES = {
    "PANAL_GATEWAY__STORE_URL": "postgresql://db/panal",
    "PANAL_GATEWAY__LISTEN": "192.0.2.7",
}


def settings() -> Settings:
    return load(None, POSTGRES)


def installation(path: Path, clock: ManualClock) -> Home:
    home = Home(path)
    home.make()
    home.pepper(os.urandom)
    create_or_load_ca(path, clock)
    create_or_load_authority(authority_path(path), clock, os.urandom)
    home.save_admin_access(AdminAccess("http://127.0.0.1:7080", "sk-panal-admin"))
    return home


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def home(tmp_path: Path, clock: ManualClock) -> Home:
    return installation(tmp_path / "first", clock)


def exported(home: Home, clock: ManualClock, file: Path) -> str:
    return export(home, settings(), file, clock, os.urandom)


def test_the_other_host_has_the_same_secrets_and_learns_where_the_bus_is(
    tmp_path: Path, home: Home, clock: ManualClock
) -> None:
    file, second = tmp_path / "sealed", Home(tmp_path / "second")
    code = exported(home, clock, file)
    assert file.stat().st_mode & 0o077 == 0
    assert import_(file, f" {code.lower()} ", second).bus_urls == ("tls://192.0.2.7:7422",)
    for name in ("secrets/pepper", "ca/ca.pem", "nats/authority.json", "admin.json"):
        assert (second.path / name).read_bytes() == (home.path / name).read_bytes()
        assert (second.path / name).stat().st_mode & 0o077 == 0
    import_(file, code, second)  # once more does no harm


def test_neither_file_nor_code_is_enough(tmp_path: Path, home: Home, clock: ManualClock) -> None:
    file = tmp_path / "sealed"
    code = exported(home, clock, file)
    for secret in (home.pepper(os.urandom), b"PRIVATE KEY", b"sk-panal-admin", code.encode()):
        assert secret not in file.read_bytes()
    another = exported(home, clock, tmp_path / "another")
    for wrong in (another, "", "AAAA", code[:-4], "not a code!", "1" * 39):
        with pytest.raises(SettingsError, match="does not open"):
            import_(file, wrong, Home(tmp_path / "second"))
    assert not (tmp_path / "second").exists()


def test_a_changed_file_is_refused(tmp_path: Path, home: Home, clock: ManualClock) -> None:
    file = tmp_path / "sealed"
    code = exported(home, clock, file)
    content = bytearray(file.read_bytes())
    at = content.index(b'"secrets":"') + 40
    content[at] = ord("A") if content[at] != ord("A") else ord("B")
    file.write_bytes(content)
    with pytest.raises(SettingsError, match="does not open"):
        import_(file, code, Home(tmp_path / "second"))
    file.write_bytes(b"{}")
    with pytest.raises(SettingsError, match="not what 'panal host export' writes"):
        import_(file, code, Home(tmp_path / "second"))


def test_another_installations_secrets_are_never_replaced(
    tmp_path: Path, home: Home, clock: ManualClock
) -> None:
    file, other = tmp_path / "sealed", installation(tmp_path / "other", clock)
    before = {path: path.read_bytes() for path in other.path.rglob("*") if path.is_file()}
    code = exported(home, clock, file)
    with pytest.raises(SettingsError, match="another installation's secrets"):
        import_(file, code, other)
    assert {path: path.read_bytes() for path in other.path.rglob("*") if path.is_file()} == before


def test_revocations_made_since_do_not_make_it_another_installation(
    tmp_path: Path, home: Home, clock: ManualClock
) -> None:
    file, second = tmp_path / "sealed", Home(tmp_path / "second")
    code = exported(home, clock, file)
    import_(file, code, second)
    path = authority_path(second.path)
    authority = create_or_load_authority(path, clock, os.urandom)
    authority.revoke(NodeKey(SigningKey.create(KeyKind.USER, os.urandom).public), 1_790_000_000)
    save_revocations(path, authority)
    kept = path.read_bytes()
    import_(file, code, second)
    assert path.read_bytes() == kept, "what was revoked here stays revoked"


def test_one_host_alone_can_have_an_sqlite_store(tmp_path: Path, home: Home, clock: ManualClock) -> None:
    with pytest.raises(SettingsError, match="PostgreSQL first"):
        export(home, load(None, {}), tmp_path / "sealed", clock, os.urandom)
    with pytest.raises(SettingsError, match="There is no installation"):
        exported(Home(tmp_path / "none"), clock, tmp_path / "sealed")
    exported(home, clock, tmp_path / "sealed")
    with pytest.raises(SettingsError, match="new file"):
        exported(home, clock, tmp_path / "sealed")
