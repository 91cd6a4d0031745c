"""``panal desk``: the owner's own switch. It works with every server unreachable and beats every policy."""

import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from panal.cli.durations import duration_s
from panal.cli.home import home_of
from panal.cli.output import show_json
from panal.core.clock import SystemClock
from panal.core.errors import SettingsError
from panal.node.desk import Desk

desk = typer.Typer(no_args_is_help=True, help="This machine's owner decides")

HomeOption = Annotated[Path | None, typer.Option("--home", help="Folder of the installation")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of words")]


def _desk(home: Path | None) -> Desk:
    folder = home_of(home, os.environ).agent
    if not folder.is_dir():
        raise SettingsError(f"There is no node on this machine ({folder}).")
    return Desk(folder, SystemClock())


@desk.command("pause")
def desk_pause(
    lasting: Annotated[str, typer.Option("--for", help="How long, such as 1h; without it until resume")] = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give the machine back now and take no work until resumed."""
    pause = _desk(home).pause(duration_s(lasting) if lasting else None)
    if as_json:
        show_json({"paused_utc_s": pause.paused_utc_s, "until_utc_s": pause.until_utc_s})
    else:
        print(f"paused {_until(pause.until_utc_s)}")


@desk.command("resume")
def desk_resume(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Serve again when nobody uses the machine."""
    was_paused = _desk(home).resume()
    if as_json:
        show_json({"was_paused": was_paused})
    else:
        print("resumed" if was_paused else "it was not paused")


@desk.command("status")
def desk_status(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """What this machine's node does, and why."""
    found = _desk(home).status()
    if as_json:
        show_json({**asdict(found), "status": msgspec.to_builtins(found.status)})
        return
    status: Any = found.status
    if status is None or not found.fresh:
        print("the agent does not run")
        return
    print(f"{status.state}{' - ' + status.reason if status.reason else ''}")
    if status.problem:
        print(f"  {status.problem}")
    if status.paused:
        print(f"  paused {_until(status.paused_until_utc_s)}")


def _until(utc_s: float | None) -> str:
    if utc_s is None:
        return "until you resume it: panal desk resume"
    return "until " + datetime.fromtimestamp(utc_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
