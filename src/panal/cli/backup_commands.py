"""``panal backup`` and ``panal restore``."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from panal.cli.home import home_of
from panal.cli.output import show_json
from panal.core.clock import SystemClock

HomeOption = Annotated[Path | None, typer.Option("--home", help="Folder of the installation")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML)")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of words")]


def backup(
    file: Annotated[Path, typer.Argument(help="The backup's file")],
    check: Annotated[bool, typer.Option("--check", help="Only look whether that backup is whole")] = False,
    home: HomeOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write everything that this installation cannot make again into one file; it may run meanwhile."""
    from panal.cli import backup as work

    if check:
        _show(work.check(file), f"{file} is whole, its audit chain too", as_json)
        return
    found = home_of(home, os.environ)
    settings = found.settings(config, os.environ)
    _show(asyncio.run(work.backup(found, settings, config, file, SystemClock())), f"written: {file}", as_json)


def restore(
    file: Annotated[Path, typer.Argument(help="The backup's file")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new home, and a new database, of a backup."""
    from panal.cli import backup as work

    found = home_of(home, os.environ)
    manifest = asyncio.run(work.restore(file, found, lambda: found.settings(None, os.environ)))
    _show(manifest, f"restored into {found.path}; start it with 'panal up'", as_json)


def _show(manifest: object, words: str, as_json: bool) -> None:
    import msgspec

    facts = msgspec.to_builtins(manifest)
    if as_json:
        show_json(facts)
    else:
        rows = sum(facts["rows"].values())
        print(f"{words} ({len(facts['files'])} files, {rows} rows)")
