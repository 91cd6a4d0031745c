"""Services of three systems by golden files; what installing does is tried with a stand-in for the system.

A golden file that is meant to change is written anew with WRITE_GOLDEN=1.
"""

import os
import plistlib
from pathlib import Path, PurePosixPath, PureWindowsPath
from xml.etree import ElementTree

import pytest

from panal.cli.service import launchd, systemd, windows
from panal.cli.service.doing import Done, carry_out, log_lines, run, shown
from panal.cli.service.plan import Plan, Service, Step
from panal.cli.service_commands import _runs, service_logs, wanted_service
from panal.core.errors import BadRequest, SettingsError
from panal.node.enrolled import EnrolledNode, save_enrolled

GOLDEN = Path(__file__).parent / "golden_services"


def posix(what: str, scope: str, **more: object) -> Service:
    return Service(
        what=what,  # type: ignore[arg-type]
        scope=scope,  # type: ignore[arg-type]
        python=PurePosixPath("/opt/panal/bin/python"),
        home=PurePosixPath("/srv/panal home"),
        **more,  # type: ignore[arg-type]
    )


def on_windows(what: str, scope: str, **more: object) -> Service:
    return Service(
        what=what,  # type: ignore[arg-type]
        scope=scope,  # type: ignore[arg-type]
        python=PureWindowsPath(r"C:\Program Files\panal\Scripts\python.exe"),
        home=PureWindowsPath(r"C:\Data\panal & co"),
        **more,  # type: ignore[arg-type]
    )


CACHE = (("PANAL_CACHE", "/var/cache/panal"),)
DESK = posix("agent", "user", on_desktop=True, arguments=("--engine", "echo"))
TEXTS = {
    "panal-agent.user.desktop.service": systemd.unit(DESK, 255),
    "panal-agent.system.service": systemd.unit(posix("agent", "system", environment=CACHE), 255),
    "panal-agent.system.old.service": systemd.unit(posix("agent", "system", environment=CACHE), 252),
    "panal-up.user.service": systemd.unit(posix("up", "user"), 255),
    "panal-up.system.service": systemd.unit(posix("up", "system", environment=CACHE), 255),
    "panal.agent.user.plist": launchd.property_list(posix("agent", "user", environment=CACHE)),
    "panal.up.system.plist": launchd.property_list(posix("up", "system")),
    "panal-agent.user.xml": windows.task(on_windows("agent", "user", arguments=("--engine", 'a "b"'))),
    "panal-up.system.xml": windows.task(on_windows("up", "system")),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_file_is_the_golden_one(name: str) -> None:
    file = GOLDEN / name
    if os.environ.get("WRITE_GOLDEN"):
        file.write_text(TEXTS[name], encoding="utf-8")
    assert TEXTS[name] == file.read_text(encoding="utf-8")


def test_there_is_no_golden_file_too_many() -> None:
    assert {file.name for file in GOLDEN.iterdir()} == set(TEXTS)


@pytest.mark.parametrize("name", [name for name in TEXTS if name.endswith(".plist")])
def test_launchd_s_file_is_a_property_list_that_starts_panal(name: str) -> None:
    content = plistlib.loads(TEXTS[name].encode())
    assert content["ProgramArguments"][:3] == ["/opt/panal/bin/python", "-m", "panal"]
    assert content["RunAtLoad"] is True and content["KeepAlive"] == {"SuccessfulExit": False}
    assert content["ThrottleInterval"] >= 10


@pytest.mark.parametrize("name", [name for name in TEXTS if name.endswith(".xml")])
def test_the_task_of_windows_is_well_formed_and_never_wakes_the_machine(name: str) -> None:
    root = ElementTree.fromstring(TEXTS[name].partition("?>")[2])
    space = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}
    assert root.findtext(".//t:Command", namespaces=space) == r"C:\Program Files\panal\Scripts\python.exe"
    assert "panal & co" in str(root.findtext(".//t:Arguments", namespaces=space))
    assert root.findtext(".//t:WakeToRun", namespaces=space) == "false"
    assert root.findtext(".//t:RestartOnFailure/t:Interval", namespaces=space) == "PT1M"


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("a b", '"a b"'),
        ('a"b', '"a\\"b"'),
        ("a \\", '"a \\\\"'),
        ("a\\b", "a\\b"),
    ],
)
def test_words_for_windows_are_quoted_as_its_programs_read_them(word: str, read: str) -> None:
    assert windows.quoted(word) == read


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("plain", "plain"),
        ("a b", '"a b"'),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ('a"b', '"a\\"b"'),
        ("", '""'),
    ],
)
def test_words_for_systemd_are_quoted_as_it_reads_them(word: str, read: str) -> None:
    assert systemd.quoted(word) == read


def test_a_dollar_is_doubled_in_command_lines_only_and_a_cache_beside_the_home_is_written_to() -> None:
    service = posix("agent", "system", environment=(("PANAL_CACHE", "/srv/panal home-cache $x 5%"),))
    text = systemd.unit(service, 255)
    assert 'Environment="PANAL_CACHE=/srv/panal home-cache $x 5%%"' in text
    assert 'ReadWritePaths="/srv/panal home" "-/srv/panal home-cache $x 5%%"' in text
    within = posix("agent", "system", environment=(("PANAL_CACHE", "/srv/panal home/cache"),))
    assert 'ReadWritePaths="/srv/panal home"\n' in systemd.unit(within, 255)


@pytest.mark.parametrize(
    ("account", "home", "cache", "argument"),
    [
        ("panal\nExecStartPre=/bin/evil", "h", "", ""),
        ("a b", "h", "", ""),
        ("", "h", "", ""),
        ("-root", "h", "", ""),
        ("panal", "h\nUser=root", "", ""),
        ("panal", "h", "/c\nUser=root", ""),
        ("panal", "h", "", "x\rUser=root"),
    ],
)
def test_no_word_can_add_a_line_to_a_unit(
    account: str, home: str, cache: str, argument: str, tmp_path: Path
) -> None:
    with pytest.raises(BadRequest) as refused:
        wanted_service("agent", tmp_path / home, True, account, (argument,), {"PANAL_CACHE": cache})
    assert refused.value.message.isprintable()


def test_what_logs_hold_cannot_rule_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "agent" / "logs" / "agent.log"
    log.parent.mkdir(parents=True)
    lines = ['{"utc_s": 2, "level": "info", "message": "\\u001b[2Jgone\\u202e"}', '{"utc_s": "x"}', "no"]
    log.write_text("\n".join(lines))
    service_logs("agent", 50, tmp_path, False)
    shown_lines = capsys.readouterr().out.splitlines()
    assert len(shown_lines) == 1 and shown_lines[0].isprintable() and "gone" in shown_lines[0]


def test_the_user_s_form_touches_only_the_user_s_own_folder(tmp_path: Path) -> None:
    plan = systemd.install(DESK, tmp_path, 255)
    assert [file for file, _text in plan.files] == [tmp_path / "systemd" / "user" / "panal-agent.service"]
    assert all(step.command[:2] == ("systemctl", "--user") for step in plan.steps)
    assert "User=" not in plan.files[0][1]


def installed(tmp_path: Path, service: Service, asked: list[tuple[str, ...]]) -> Plan:
    def answer(command: tuple[str, ...]) -> Done:
        asked.append(command)
        return Done(0, "")

    plan = systemd.install(service, tmp_path, 255)
    carry_out(plan, answer)
    return plan


def test_installing_again_after_an_upgrade_changes_the_program_and_keeps_the_identity(tmp_path: Path) -> None:
    node = EnrolledNode(
        node="node_1", name="desk", key_seed="seed", url="https://x", pin="", ca_pem="", bus_urls=[],
        credential="", node_class="desktop",
    )  # fmt: skip
    home = tmp_path / "home"
    save_enrolled(home / "agent", node)
    before = (home / "agent" / "node.json").read_bytes()
    asked: list[tuple[str, ...]] = []
    for python in ("/opt/panal-1/bin/python", "/opt/panal-2/bin/python"):
        service = Service(what="agent", scope="user", python=PurePosixPath(python), home=home)
        plan = installed(tmp_path, service, asked)
        assert python in plan.files[0][0].read_text()
    assert ("systemctl", "--user", "restart", "panal-agent.service") in asked
    removing = systemd.uninstall(service, tmp_path)
    carry_out(removing, lambda _command: Done(1, "not loaded"))
    assert not plan.files[0][0].exists()
    assert (home / "agent" / "node.json").read_bytes() == before


def test_a_step_that_fails_ends_it_with_the_system_s_own_words(tmp_path: Path) -> None:
    plan = Plan(steps=(Step(("no",), optional=True), Step(("systemctl", "enable", "x"))))
    with pytest.raises(SettingsError, match=r"'systemctl enable x' failed: Failed to connect to bus"):
        carry_out(plan, lambda _command: Done(1, "hint\nFailed to connect to bus"))


def test_a_system_without_services_is_said_in_a_sentence() -> None:
    with pytest.raises(SettingsError, match="has no 'no-such-program'"):
        run(("no-such-program", "x"))


def test_the_plan_can_be_shown_without_doing_it(tmp_path: Path) -> None:
    told = shown(systemd.install(DESK, tmp_path, 255))
    assert told["files"][0]["content"].startswith("[Unit]")
    assert told["commands"][0] == ["systemctl", "--user", "daemon-reload"]
    assert list(tmp_path.iterdir()) == []


def test_only_a_machine_with_an_owner_starts_with_its_desktop(tmp_path: Path) -> None:
    environment = {"PANAL_STORE": "secret", "PANAL_CACHE": "/c"}
    bare = wanted_service("agent", tmp_path, False, "panal", (), environment)
    assert not bare.on_desktop
    assert bare.environment == (("PANAL_CACHE", "/c"),), "no other variable goes into the file"
    for node_class, owned in (("desktop", True), ("dedicated", False)):
        node = EnrolledNode(
            node="n", name="desk", key_seed="s", url="", pin="", ca_pem="", bus_urls=[], credential="",
            node_class=node_class,
        )  # fmt: skip
        save_enrolled(tmp_path / "agent", node)
        assert wanted_service("agent", tmp_path, False, "panal", (), {}).on_desktop is owned
    with pytest.raises(BadRequest):
        wanted_service("gateway", tmp_path, False, "panal", (), {})


@pytest.mark.parametrize(
    ("told", "runs"),
    [
        ("LoadState=loaded\nActiveState=active\nSubState=running", True),
        ("ActiveState=activating\nSubState=auto-restart", False),
        ("ActiveState=inactive", False),
        ("panal.agent = {\n\tstate = running\n}", True),
        ("TaskName: \\panal\\panal-agent\nStatus:                               Running", True),
        ("Status:                               Ready", False),
        ("", False),
    ],
)
def test_whether_it_runs_is_read_from_the_system_s_words(told: str, runs: bool) -> None:
    assert _runs(told) is runs


def test_the_newest_entries_of_several_logs_come_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text('{"utc_s":1,"message":"one"}\nno json\n{"utc_s":3,"message":"three"}\n')
    (tmp_path / "b.log").write_text('{"utc_s":2,"message":"two"}\n[1]\n')
    files = [tmp_path / "a.log", tmp_path / "b.log", tmp_path / "none.log"]
    assert [entry["message"] for entry in log_lines(files, 2)] == ["two", "three"]
