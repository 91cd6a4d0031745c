"""``panal models``: models, the names that lead to them, and the weights in the cache."""

import os
from typing import Annotated
from urllib.parse import quote

import typer
from rich.console import Console

from panal.cli.access import api_of
from panal.cli.admin_commands import HomeOption, JsonOption, UrlOption
from panal.cli.output import show_fields, show_json, show_rows
from panal.core.names import name_key

PATH = "/api/v1/aliases"
COLUMNS = ("name", "model")
AliasName = Annotated[str, typer.Argument(help="The alias, as clients write it")]

models = typer.Typer(no_args_is_help=True, help="Models that are or were served, and their names")
alias = typer.Typer(no_args_is_help=True, help="Other names for models")
models.add_typer(alias, name="alias")


@models.command("list")
def models_list(home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False) -> None:
    """Models, the aliases that lead to them, and the nodes that serve them now."""
    api = api_of(home, url)
    fleet = api.get("/api/v1/fleet")
    # Two nodes may write one name in two ways; the gateway's way is shown.
    shown = {name_key(name): name for name in fleet["models"]}
    serving: dict[str, list[str]] = {name: [] for name in fleet["models"]}
    for node in fleet["nodes"]:
        for replica in node["replicas"]:
            if node["liveness"] == "live" and replica["healthy"]:
                model = replica["model"]
                serving.setdefault(shown.get(name_key(model), model), []).append(node["name"])
    aliases: dict[str, list[str]] = {}
    for each in api.every(PATH):
        aliases.setdefault(each["model"], []).append(each["name"])
    rows = [
        {"model": name, "aliases": aliases.get(name, []), "nodes": where}
        for name, where in sorted(serving.items())
    ]
    show_rows(rows, ("model", "aliases", "nodes"), as_json=as_json, empty="No models yet.")


@models.command("fetch")
def models_fetch(as_json: JsonOption = False) -> None:
    """Put the default model into the cache, so that a later start needs no network."""
    from panal.cli.model_cache import ensure_model

    path = ensure_model(os.environ, Console(stderr=True))
    if as_json:
        show_json({"path": str(path)})
    else:
        print(path)


@alias.command("list")
def alias_list(home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False) -> None:
    """All aliases, and the models that answer."""
    show_rows(api_of(home, url).every(PATH), COLUMNS, as_json=as_json, empty="No aliases.")


@alias.command("set")
def alias_set(
    name: AliasName,
    model: Annotated[str, typer.Argument(help="Own name of the model that shall answer")],
    home: HomeOption = None,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make an alias, or lead one to another model; in force within two seconds."""
    show_fields(api_of(home, url).call("PUT", _path(name), {"model": model}), as_json=as_json)


@alias.command("rename")
def alias_rename(
    name: AliasName,
    new_name: Annotated[str, typer.Argument(help="What it is called from now on")],
    home: HomeOption = None,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """The old name is unknown within two seconds; keys that may use it may use the new one."""
    show_fields(api_of(home, url).call("PATCH", _path(name), {"name": new_name}), as_json=as_json)


@alias.command("remove")
def alias_remove(
    name: AliasName, home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False
) -> None:
    """The name is unknown within two seconds."""
    show_fields(api_of(home, url).delete(_path(name)), as_json=as_json)


def _path(name: str) -> str:
    return f"{PATH}/{quote(name, safe='')}"
