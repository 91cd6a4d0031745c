"""``panal host``: bring a second gateway host up beside the first."""

import os
from pathlib import Path
from typing import Annotated

import typer

from panal.cli.home import home_of
from panal.cli.output import show_json
from panal.core.clock import SystemClock

CODE_VARIABLE = "PANAL_HOST_CODE"
HomeOption = Annotated[Path | None, typer.Option("--home", help="Folder of the installation")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML)")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of words")]

host = typer.Typer(no_args_is_help=True, help="Several gateway hosts over one database and one bus")


@host.command("export")
def host_export(
    file: Annotated[Path, typer.Argument(help="The sealed file, a new one")],
    home: HomeOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Seal this installation's secrets for another gateway host, and show once the code that opens them."""
    from panal.cli import host_secrets

    found = home_of(home, os.environ)
    settings = found.settings(config, os.environ)
    code = host_secrets.export(found, settings, file, SystemClock(), os.urandom)
    if as_json:
        show_json({"file": str(file), "code": code})
        return
    if not settings.gateway.listen and not settings.bus.urls:
        print("The bus listens on this machine only: start 'panal up' with --listen before the other host.")
    print(f"written: {file}\ncode:    {code}   (shown once; let it travel another way than the file)")


@host.command("import")
def host_import(
    file: Annotated[Path, typer.Argument(help="What 'panal host export' wrote")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make this machine a gateway host of that installation; asks for the code (PANAL_HOST_CODE)."""
    from panal.cli import host_secrets

    code = os.environ.get(CODE_VARIABLE) or typer.prompt("Code", hide_input=True, err=True)
    found = home_of(home, os.environ)
    secrets = host_secrets.import_(file, code, found)
    if as_json:
        show_json({"home": str(found.path), "files": sorted(secrets.files), "bus_urls": secrets.bus_urls})
        return
    urls = ", ".join(f'"{url}"' for url in secrets.bus_urls)
    print(
        f"imported into {found.path}. Put the same 'gateway.store_url' as on the first host into "
        f"{found.settings_file}, and under [bus]: urls = [{urls}]. Then: panal gateway"
    )
