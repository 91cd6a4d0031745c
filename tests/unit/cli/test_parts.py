"""Durations, addresses, the home, tables, failures: what the command line decides without acting."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from panal.cli import gateway_program
from panal.cli.addresses import addresses_of
from panal.cli.api_client import Api, ApiRefused, read_answer, segment
from panal.cli.durations import duration_s
from panal.cli.failures import told_of
from panal.cli.home import AdminAccess, Home, home_of
from panal.cli.output import show_fields, show_rows
from panal.core.errors import BadRequest, BusError, NotAllowed, PanalError, SettingsError
from panal.core.settings import Settings, load

# --- durations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("30m", 1800.0), ("1h", 3600.0), ("7d", 604_800.0), (" 1.5 h ", 5400.0)],
)
def test_lengths_of_time_as_people_write_them(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1", "-1h", "1h30m", "1w", "1e9s", "1.h", "٣h\n1h", "inf s"])
def test_anything_else_is_no_length_of_time(text: str) -> None:
    with pytest.raises(BadRequest, match="length of time"):
        duration_s(text)


@given(st.text(max_size=20))
def test_any_text_is_a_length_of_time_or_a_sentence(text: str) -> None:
    try:
        assert duration_s(text) >= 0
    except BadRequest as error:
        assert error.message.endswith(".")


# --- addresses ---------------------------------------------------------------------------------------


def settings(**environment: str):
    return load(None, {f"PANAL_{name}": value for name, value in environment.items()})


def test_without_listen_everything_stays_on_loopback() -> None:
    found = addresses_of(settings())
    assert found.listen_host == "127.0.0.1"
    assert found.https_url == "https://127.0.0.1:7443"
    assert found.advertised_bus_urls == ("tls://127.0.0.1:7422",)
    assert found.names == ("localhost", "127.0.0.1")


def test_a_listened_address_is_advertised_and_stands_in_the_certificate() -> None:
    found = addresses_of(settings(GATEWAY__LISTEN="10.1.2.3"))
    assert found.http_url == "http://127.0.0.1:7080"
    assert (found.listen_host, found.https_url) == ("10.1.2.3", "https://10.1.2.3:7443")
    assert found.local_bus_url == "tls://10.1.2.3:7422"
    assert "10.1.2.3" in found.names


def test_advertised_addresses_are_told_instead_of_the_listened_one() -> None:
    found = addresses_of(
        settings(GATEWAY__LISTEN="0.0.0.0", GATEWAY__ADVERTISE="gpu.example.com,2001:db8::1")
    )
    assert found.https_url == "https://gpu.example.com:7443"
    assert found.local_bus_url == "tls://127.0.0.1:7422"
    assert found.advertised_bus_urls == ("tls://gpu.example.com:7422", "tls://[2001:db8::1]:7422")


def test_listening_everywhere_needs_a_name_that_others_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: "localhost.localdomain")
    with pytest.raises(SettingsError, match=r"gateway\.advertise"):
        addresses_of(settings(GATEWAY__LISTEN="::"))


# --- the home ----------------------------------------------------------------------------------------


def test_the_home_is_the_option_then_the_variable_then_the_users_data(tmp_path: Path) -> None:
    environment = {"PANAL_HOME": str(tmp_path / "variable"), "XDG_DATA_HOME": str(tmp_path / "data")}
    assert home_of(tmp_path / "option", environment).path == tmp_path / "option"
    assert home_of(None, environment).path == tmp_path / "variable"
    del environment["PANAL_HOME"]
    if os.name == "posix" and os.uname().sysname == "Linux":
        assert home_of(None, environment).path == tmp_path / "data" / "panal"


def test_secrets_are_made_once_and_only_for_the_owners_eyes(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.make()
    assert home.pepper(lambda count: b"1" * count) == b"1" * 32
    assert home.pepper(lambda count: b"2" * count) == b"1" * 32
    home.save_admin_access(AdminAccess("http://127.0.0.1:7080", "secret"))
    assert home.admin_access() == AdminAccess("http://127.0.0.1:7080", "secret")
    assert "secret" not in repr(home.admin_access())
    for file in (home.admin_file, home.path / "secrets" / "pepper"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    assert sorted(path.name for path in home.path.iterdir()) == ["admin.json", "secrets"]


def test_damaged_secrets_are_named(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "pepper").write_bytes(b"short")
    with pytest.raises(SettingsError, match="pepper"):
        home.pepper(os.urandom)
    home.admin_file.write_text("{}")
    with pytest.raises(SettingsError, match=r"admin\.json"):
        home.admin_access()


def test_a_home_below_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot be written"):
        Home(tmp_path / "file" / "home").make()


# --- what is printed ---------------------------------------------------------------------------------


def test_a_table_cuts_nothing_off_and_says_when_it_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": "node_" + "x" * 200, "used_up": True, "models": ["a", "b"], "total_s": 1.5, "seen": None},
        {"id": "n", "used_up": False, "models": [], "total_s": 2.0, "seen": "now"},
    ]
    show_rows(rows, ("id", "used_up", "models", "total_s", "seen"), as_json=False, empty="None.")
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "used", "up", "models", "total", "s", "seen"]
    assert first.split() == ["node_" + "x" * 200, "yes", "a,", "b", "1.5", "-"]
    assert second.split() == ["n", "no", "-", "2", "now"]
    show_rows([], ("id",), as_json=False, empty="None.")
    assert capsys.readouterr().out == "None.\n"
    show_rows([], ("id",), as_json=True, empty="None.")
    assert json.loads(capsys.readouterr().out) == []
    show_fields({"id": "é", "last_seen": None}, as_json=False)
    assert capsys.readouterr().out == "id         é\nlast seen  -\n"


# --- the way to the gateway --------------------------------------------------------------------------


def test_what_the_gateway_says_is_passed_on() -> None:
    assert read_answer(200, b'{"a": 1}') == {"a": 1}
    assert read_answer(204, b"") == {}
    with pytest.raises(NotAllowed, match="needs a key"):
        read_answer(403, b'{"error": {"message": "This needs a key."}}')
    for content in (b"", b"<html>", b"[]", b'{"error": {}}'):
        with pytest.raises(ApiRefused, match="502"):
            read_answer(502, content)


@pytest.mark.parametrize(
    "url", ["", "gateway", "ftp://x", "http://", "https://x:y", "https://[::1", "http://x"]
)
def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(SettingsError):
        Api(url, "key").connect()


def test_the_key_goes_in_the_clear_to_this_machine_only() -> None:
    for url in (
        "http://127.0.0.1:7080",
        "http://localhost:7080",
        "http://[::1]:7080",
        "https://gpu.example.com",
    ):
        Api(url, "key").connect().close()
    with pytest.raises(SettingsError, match="in the clear"):
        Api("http://10.1.2.3:7080", "key").connect()


def test_a_name_is_one_segment_of_a_path() -> None:
    assert segment("a b?#%é") == "a%20b%3F%23%25%C3%A9"
    for text in ("", ".", "..", "a/b"):
        with pytest.raises(BadRequest):
            segment(text)


# --- failures ----------------------------------------------------------------------------------------


def test_the_first_failure_of_nested_groups_is_told() -> None:
    first = BusError("first")
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [first]), PanalError("second")])
    assert told_of(group) is first
    assert told_of(first) is first


def test_what_nobody_expected_is_told_as_no_sentence() -> None:
    fault = ZeroDivisionError()
    assert told_of(fault) is None
    assert told_of(ExceptionGroup("outer", [PanalError("known"), ExceptionGroup("inner", [fault])])) is None


@pytest.mark.parametrize("together", [True, False])
def test_a_gateway_that_fails_raises_its_sentence_alone_and_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """A group of one would reach the person as a traceback."""

    async def serve(*_arguments: object, **_options: object) -> None:
        error = SettingsError("It must not start like this.")
        raise ExceptionGroup("of a task group", [error]) if together else error

    monkeypatch.setattr(gateway_program, "_serve", serve)
    monkeypatch.setattr(gateway_program, "log_to", lambda *_words: None)
    monkeypatch.setattr(gateway_program, "say", lambda *_words, **_values: None)
    home = Home(tmp_path / "home")
    with pytest.raises(SettingsError, match="must not start"):
        gateway_program.run(home, Settings(), Settings, gateway_program.Place(), watch_parent=False)


# --- completion --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "wanted"), [("panal no", "nodes"), ("panal nodes cor", "cordon")])
def test_the_shell_completes_commands(words: str, wanted: str) -> None:
    program = "import sys; sys.argv = ['panal']; from panal.cli.main import main; main()"
    asked = {"_PANAL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    told = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert told.stdout.split() == [wanted]


def test_the_commands_follow_the_gateway_to_another_port(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.follow_address("http://127.0.0.1:7081")
    assert not home.admin_file.exists()
    home.save_admin_access(AdminAccess("http://127.0.0.1:7080", "a key"))
    home.follow_address("http://127.0.0.1:7081")
    assert home.admin_access() == AdminAccess("http://127.0.0.1:7081", "a key")
