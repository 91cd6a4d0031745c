"""``panal config``: what the settings are, where they come from, and whether a start would accept them."""

import os
from pathlib import Path
from typing import Annotated

import typer

from panal.cli.home import home_of
from panal.cli.output import show_json, show_rows
from panal.core.settings import check, describe

config = typer.Typer(no_args_is_help=True, help="Settings")

HomeOption = Annotated[Path | None, typer.Option("--home", help="Folder of the installation")]
FileOption = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML)")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of words")]


@config.command("show")
def config_show(home: HomeOption = None, file: FileOption = None, as_json: JsonOption = False) -> None:
    """Every setting, its value and where it comes from."""
    settings = home_of(home, os.environ).settings(file, os.environ)
    rows = [
        {"setting": row.key, "value": row.value, "source": row.source, "text": row.text}
        for row in describe(settings)
    ]
    show_rows(rows, ("setting", "value", "source", "text"), as_json=as_json, empty="")


@config.command("check")
def config_check(home: HomeOption = None, file: FileOption = None, as_json: JsonOption = False) -> None:
    """Every fault of the settings, a sentence each."""
    found = home_of(home, os.environ)
    used = file or (found.settings_file if found.settings_file.exists() else None)
    faults = check(used, os.environ)
    if as_json:
        show_json({"file": str(used) if used else None, "faults": faults})
    else:
        for fault in faults:
            print(fault)
        if not faults:
            print(f"good: {used or 'no file, defaults and environment only'}")
    if faults:
        raise typer.Exit(1)
