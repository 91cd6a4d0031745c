"""Settings: one file, then the environment, and a sentence for everything that is wrong."""

from pathlib import Path

import pytest

from panal.core.errors import SettingsError
from panal.core.settings import GatewaySettings, Settings, check, describe, load


def write(folder: Path, text: str) -> Path:
    file = folder / "panal.toml"
    file.write_text(text)
    return file


def test_nothing_given_means_the_defaults() -> None:
    settings = load(None, {})
    assert settings.gateway.http_host == "127.0.0.1"
    assert settings.gateway.http_port == 7080
    assert settings.gateway.listen == ""
    assert settings.bus.nats_port == 7422
    assert settings.node.poll_s == 0.25
    assert settings.owner.idle_s is None


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, '[gateway]\nhttp_port = 1\nadvertise = ["a:1"]\n[owner]\nidle_s = 30\n')
    settings = load(file, {"PANAL_GATEWAY__HTTP_PORT": "2", "OTHER": "x", "PANAL_HOME": "/x"})
    assert settings.gateway.http_port == 2
    assert settings.gateway.advertise == ("a:1",)
    assert settings.owner.idle_s == 30.0
    assert isinstance(settings.owner.idle_s, float)


def test_lists_and_truths_come_from_the_environment() -> None:
    settings = load(None, {"PANAL_GATEWAY__ADVERTISE": "a, b:7", "PANAL_NODE__EXACT": "true"})
    assert settings.gateway.advertise == ("a", "b:7")
    assert settings.node.exact is True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gateway]\nhttp_prt = 1", ["gateway.http_prt", "panal.toml", "gateway.http_port"]),
        ("[gatway]\nhttp_port = 1", ["gatway", "panal.toml", "gateway"]),
        ("gateway = 3", ["gateway", "table"]),
        ("[gateway]\nhttp_port = 'x'", ["gateway.http_port", "whole number", "panal.toml"]),
        ("[gateway]\nhttp_port = true", ["gateway.http_port", "whole number"]),
        ("[gateway]\nhttp_port = 70000", ["gateway.http_port", "at most 65535"]),
        ("[gateway]\nqueue_wait_s_max = '30s'", ["gateway.queue_wait_s_max", "number of seconds", "30s"]),
        ("[gateway]\nbody_bytes_max = '10 MB'", ["whole number of bytes"]),
        ("[gateway]\nqueue_wait_s_max = nan", ["finite"]),
        ("[gateway]\nqueue_wait_ms = 3", ["queue_wait_ms", "Did you mean"]),
        ("[gateway]\nadvertise = 'a'", ["gateway.advertise", "list"]),
        ("[gateway]\nhttp_host = '0.0.0.0'", ["gateway.http_host", "loopback", "gateway.listen"]),
        ("[node]\npoll_s = 1.0", ["node.poll_s", "0.25"]),
        ("[node]\nexact = 1", ["node.exact", "true or false"]),
        ("[log]\nlevel = 'loud'", ["log.level", "debug, info"]),
        ("[gateway", ["not TOML"]),
    ],
)
def test_what_is_wrong_stops_the_start_with_a_sentence(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load(write(tmp_path, text), {})
    for word in words:
        assert word in caught.value.message
    assert caught.value.message.endswith((".", "?"))
    assert "\n" not in caught.value.message.strip() or "TOML" in caught.value.message


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("PANAL_GATEWAY__HTTP_PRT", ["gateway.http_prt", "PANAL_GATEWAY__HTTP_PRT", "gateway.http_port"]),
        ("PANAL_GATWAY__HTTP_PORT", ["gatway", "gateway"]),
        ("PANAL_GATEWAY_HTTP_PORT", ["PANAL_GATEWAY__HTTP_PORT"]),
        ("PANAL_GATEWAY__HTTP_PORT", ["whole number", "PANAL_GATEWAY__HTTP_PORT"]),
    ],
)
def test_faults_of_the_environment_name_the_variable(variable: str, words: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        load(None, {variable: "x"})
    for word in words:
        assert word in caught.value.message


def test_check_lists_every_fault_and_load_the_first(tmp_path: Path) -> None:
    file = write(tmp_path, "[gateway]\nhttp_port = -1\nbad = 1\n")
    faults = check(file, {"PANAL_LOG__LEVEL": "x"})
    assert len(faults) == 3
    assert check(None, {}) == []


def test_a_missing_file_is_a_fault_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.toml"):
        load(tmp_path / "none.toml", {})


def test_secrets_are_shown_nowhere(tmp_path: Path) -> None:
    file = write(tmp_path, "[gateway]\nstore_url = 'postgresql://u:hunter2@h/db'\n")
    settings = load(file, {})
    assert settings.gateway.store_url.endswith("/db")
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(describe(settings))
    with pytest.raises(SettingsError) as caught:
        load(write(tmp_path, "[gateway]\nstore_url = ['hunter2']\n"), {})
    assert "hunter2" not in caught.value.message


def test_describe_tells_value_default_and_source(tmp_path: Path) -> None:
    file = write(tmp_path, "[node]\nslots = 8\n")
    rows = {row.key: row for row in describe(load(file, {"PANAL_LOG__LEVEL": "debug"}))}
    assert rows["node.slots"].value == "8"
    assert rows["node.slots"].default == "4"
    assert rows["node.slots"].source == str(file)
    assert rows["log.level"].source == "environment PANAL_LOG__LEVEL"
    assert rows["node.threads"].source == "default"
    assert all(row.text for row in rows.values())


def test_every_default_obeys_its_own_rule() -> None:
    settings = Settings()
    text = {
        f"PANAL_{row.key.upper().replace('.', '__')}": row.value
        for row in describe(settings)
        if row.value not in ("(by node class)",)
    }
    assert load(None, text) == settings
    assert isinstance(settings.gateway, GatewaySettings)
