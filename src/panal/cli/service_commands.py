"""``panal service``: the agent, or a whole installation, as a service of this system."""

import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, cast

import typer

from panal.cli.home import Home, home_of
from panal.cli.output import printable, show_json
from panal.cli.service import launchd, systemd, windows
from panal.cli.service.doing import carry_out, log_lines, run, shown
from panal.cli.service.plan import Plan, Scope, Service, What
from panal.core.errors import BadRequest, SettingsError
from panal.core.nodes import NodeClass
from panal.node.enrolled import load_enrolled

service = typer.Typer(no_args_is_help=True, help="panal as a service of this system")

WhatArgument = Annotated[str, typer.Argument(help="agent (this machine as a node) or up (everything)")]
HomeOption = Annotated[Path | None, typer.Option("--home", help="Folder of the installation")]
SystemOption = Annotated[
    bool, typer.Option("--system", help="For the whole machine, as root; without it for you, without root")
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of words")]
DryOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing")]


@service.command("install")
def service_install(
    what: WhatArgument = "agent",
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Options for the program itself, after --")
    ] = None,
    home: HomeOption = None,
    system: SystemOption = False,
    account: Annotated[str, typer.Option(help="User that a --system service runs as")] = "panal",
    dry_run: DryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Install and start it; again after an upgrade. The node's identity stays as it is."""
    wanted = wanted_service(what, home, system, account, tuple(arguments or ()), os.environ)
    if wanted.what == "agent" and not dry_run and load_enrolled(Path(wanted.folder)) is None:
        raise SettingsError("This machine has not joined yet: panal join URL --token TOKEN --no-run")
    _do(install_plan(wanted), dry_run=dry_run, as_json=as_json, done=f"{wanted.name} is installed and starts")


@service.command("uninstall")
def service_uninstall(
    what: WhatArgument = "agent",
    home: HomeOption = None,
    system: SystemOption = False,
    dry_run: DryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Stop and remove it. What is in the home stays."""
    wanted = wanted_service(what, home, system, "panal", (), os.environ)
    _do(uninstall_plan(wanted), dry_run=dry_run, as_json=as_json, done=f"{wanted.name} is removed")


@service.command("status")
def service_status(
    what: WhatArgument = "agent",
    home: HomeOption = None,
    system: SystemOption = False,
    as_json: JsonOption = False,
) -> None:
    """What the system says of it. The exit status is 1 when it does not run."""
    wanted = wanted_service(what, home, system, "panal", (), os.environ)
    done = run(_status_command(wanted))
    runs = done.status == 0 and _runs(done.output)
    if as_json:
        show_json({"service": wanted.name, "runs": runs, "told": done.output.splitlines()})
    else:
        print(f"{wanted.name} {'runs' if runs else 'does not run'}")
        print(done.output)
    if not runs:
        raise typer.Exit(1)


@service.command("logs")
def service_logs(
    what: WhatArgument = "agent",
    lines: Annotated[int, typer.Option(help="How many entries, newest last", min=1, max=10_000)] = 50,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """The newest entries of its log, which panal itself turns over."""
    found = log_lines(log_files(_what(what), home_of(home, os.environ)), lines)
    if as_json:
        show_json(found)
        return
    for entry in found:
        at = datetime.fromtimestamp(float(entry.get("utc_s", 0.0)), UTC).astimezone()
        print(
            f"{at:%Y-%m-%d %H:%M:%S} {printable(str(entry.get('level', ''))):<7} "
            f"{printable(str(entry.get('message', '')))}"
        )
    if not found:
        print("Nothing was written yet.")


def wanted_service(
    what: str, home: Path | None, system: bool, account: str, arguments: tuple[str, ...],
    environment: Mapping[str, str],
) -> Service:  # fmt: skip
    """The service that the options name. Raises BadRequest, SettingsError."""
    folder = home_of(home, environment)
    enrolled = load_enrolled(folder.agent) if what == "agent" else None
    scope: Scope = "system" if system else "user"
    # A system service has no home of a user to keep models in.
    cache = environment.get("PANAL_CACHE") or (str(folder.path / "cache") if system else "")
    _check_words(account, str(folder.path), cache, *arguments)
    return Service(
        what=_what(what),
        scope=scope,
        python=Path(sys.executable),
        home=folder.path,
        arguments=arguments,
        account=account,
        environment=(("PANAL_CACHE", cache),) if cache else (),
        on_desktop=enrolled is not None and NodeClass(enrolled.node_class).owned,
    )


def _check_words(account: str, *words: str) -> None:
    """The files of services have lines: no word may begin one of its own. Raises BadRequest."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", account) is None:
        raise BadRequest(f"'{printable(account[:64])}' is no name of an account.")
    for word in words:
        if not word.isprintable():
            raise BadRequest(f"'{printable(word[:100])}' holds a character that no service can be given.")


def log_files(what: What, home: Home) -> list[Path]:
    """The logs that belong to a service."""
    agent = sorted((home.agent / "logs").glob("*.log"))
    return agent if what == "agent" else [*sorted(home.logs.glob("*.log")), *agent]


def install_plan(wanted: Service) -> Plan:
    """For this system."""
    if sys.platform == "win32":
        return windows.install(wanted, Path(wanted.home))
    if sys.platform == "darwin":
        return launchd.install(wanted, Path.home(), os.getuid())
    return systemd.install(wanted, _config_home(os.environ), _systemd_version())


def uninstall_plan(wanted: Service) -> Plan:
    """For this system."""
    if sys.platform == "win32":
        return windows.uninstall(wanted, Path(wanted.home))
    if sys.platform == "darwin":
        return launchd.uninstall(wanted, Path.home(), os.getuid())
    return systemd.uninstall(wanted, _config_home(os.environ))


def _status_command(wanted: Service) -> tuple[str, ...]:
    if sys.platform == "win32":
        return windows.status(wanted)
    if sys.platform == "darwin":
        return launchd.status(wanted, os.getuid())
    return systemd.status(wanted)


def _runs(told: str) -> bool:
    """systemd's, launchd's and the scheduler's word for it."""
    running = r"^\s*(ActiveState=active|state = running|Status:\s+Running)\s*$"
    return re.search(running, told, re.MULTILINE) is not None


def _systemd_version() -> int:
    told = re.match(r"systemd (\d+)", run(("systemctl", "--version")).output)
    return int(told[1]) if told else 0


def _config_home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def _what(word: str) -> What:
    if word not in ("agent", "up"):
        raise BadRequest("A service is 'agent' or 'up'.")
    return cast(What, word)


def _do(plan: Plan, *, dry_run: bool, as_json: bool, done: str) -> None:
    if not dry_run:
        carry_out(plan)
    if as_json:
        show_json({"done": not dry_run, **shown(plan)})
        return
    if dry_run:
        for file, text in plan.files:
            print(f"# {file}\n{text}")
        for step in plan.steps:
            print(f"would run: {' '.join(step.command)}")
        for file in plan.removes:
            print(f"would remove: {file}")
    else:
        print(done)
    for note in plan.notes:
        print(note)
