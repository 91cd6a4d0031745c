"""Commands of administration: nouns with verbs, each a client of /api/v1."""

from pathlib import Path
from typing import Annotated, Any

import typer

from panal.cli.access import api_of
from panal.cli.api_client import segment
from panal.cli.durations import duration_s
from panal.cli.gpu_words import gpu_lines
from panal.cli.output import show_fields, show_json, show_rows
from panal.core.errors import BadRequest

HomeOption = Annotated[Path | None, typer.Option("--home", help="Folder of the installation")]
UrlOption = Annotated[str, typer.Option("--url", help="Gateway, where it is not on this machine")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of words")]
Name = Annotated[str, typer.Argument(help="Name or id")]
Reason = Annotated[str, typer.Option(help="Why; shown to whoever looks")]

tokens = typer.Typer(no_args_is_help=True, help="Join tokens: what lets a machine in")
nodes = typer.Typer(no_args_is_help=True, help="Machines that serve")
keys = typer.Typer(no_args_is_help=True, help="API keys")
usage = typer.Typer(no_args_is_help=True, help="Who used what")
audit = typer.Typer(no_args_is_help=True, help="Who changed what")


@tokens.command("create")
def tokens_create(
    uses: Annotated[int, typer.Option(help="How many machines may join with it")] = 1,
    expires: Annotated[str, typer.Option(help="Life, such as 30m or 1h; at most 24h")] = "1h",
    node_class: Annotated[
        str, typer.Option("--class", help="dedicated, workstation, desktop or laptop")
    ] = "desktop",
    site: Annotated[str, typer.Option(help="Where the machine stands")] = "",
    country: Annotated[str, typer.Option(help="Two capital letters, such as ES")] = "",
    data_class: Annotated[str, typer.Option(help="Most sensitive data it may see")] = "internal",
    approve: Annotated[bool, typer.Option("--approve", help="An admin must approve each machine")] = False,
    home: HomeOption = None,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make a join token; it is shown once."""
    made = api_of(home, url).post(
        "/api/v1/tokens",
        {
            "uses": uses,
            "life_s": round(duration_s(expires)),
            "node_class": node_class,
            "site": site,
            "country": country,
            "data_class": data_class,
            "approve": approve,
        },
    )
    if as_json:
        show_json(made)
    else:
        print(made["token"])


@tokens.command("list")
def tokens_list(home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False) -> None:
    """All join tokens, without their secrets."""
    columns = ("id", "state", "uses_left", "node_class", "site", "data_class", "approve")
    show_rows(api_of(home, url).every("/api/v1/tokens"), columns, as_json=as_json, empty="No join tokens.")


@tokens.command("revoke")
def tokens_revoke(
    name: Name, home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False
) -> None:
    """Nobody joins with it any more."""
    show_fields(api_of(home, url).delete(f"/api/v1/tokens/{segment(name)}"), as_json=as_json)


@nodes.command("list")
def nodes_list(home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False) -> None:
    """All nodes, and how they are now."""
    api = api_of(home, url)
    live = {node["id"]: node for node in api.get("/api/v1/fleet")["nodes"]}
    rows = [_with_live(node, live.get(node["id"])) for node in api.every("/api/v1/nodes")]
    columns = ("name", "node_class", "membership", "liveness", "state", "reason", "models", "id")
    empty = "No nodes yet. 'panal tokens create' lets one in."
    show_rows(rows, columns, as_json=as_json, empty=empty)


@nodes.command("show")
def nodes_show(name: Name, home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False) -> None:
    """One node in full."""
    api = api_of(home, url)
    node = api.get(f"/api/v1/nodes/{segment(name)}")
    live = {each["id"]: each for each in api.get("/api/v1/fleet")["nodes"]}.get(node["id"])
    gpus = live["gpus"] if live is not None else []
    replicas = live["replicas"] if live is not None else []
    if as_json:
        show_json(_with_live(node, live) | {"gpus": gpus, "replicas": replicas})
    else:
        words = {"gpus": gpu_lines(gpus), "notes": [each["note"] for each in replicas if each["note"]]}
        show_fields(_with_live(node, live) | words, as_json=False)


def _with_live(node: dict[str, Any], live: dict[str, Any] | None) -> dict[str, Any]:
    """The node with how it is now; its own reason for that comes before its operators'."""
    if live is None:
        return node | {"liveness": "never", "state": "", "models": []}
    models = [replica["model"] for replica in live["replicas"]]
    now = {"liveness": live["liveness"], "state": live["state"], "models": models}
    return node | now | {"reason": live["reason"] or node["reason"]}


def _change(
    verb: str, name: str, home: Path | None, url: str, as_json: bool, reason: str | None = None
) -> None:
    body = {} if reason is None else {"reason": reason}
    node = api_of(home, url).post(f"/api/v1/nodes/{segment(name)}/{verb}", body)
    if as_json:
        show_json(node)
    else:
        print(f"{node['name']} is {node['membership']} now")


@nodes.command("approve")
def nodes_approve(
    name: Name, home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False
) -> None:
    """Let a pending node in."""
    _change("approve", name, home, url, as_json)


@nodes.command("cordon")
def nodes_cordon(
    name: Name, reason: Reason = "", home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False
) -> None:
    """No new work for a node; what runs may end."""
    _change("cordon", name, home, url, as_json, reason)


@nodes.command("uncordon")
def nodes_uncordon(
    name: Name, home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False
) -> None:
    """New work again."""
    _change("uncordon", name, home, url, as_json)


@nodes.command("drain")
def nodes_drain(
    name: Name, reason: Reason = "", home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False
) -> None:
    """Hand over what runs, then rest."""
    _change("drain", name, home, url, as_json, reason)


@nodes.command("revoke")
def nodes_revoke(
    name: Name, reason: Reason = "", home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False
) -> None:
    """Cut a node off for good, within a second."""
    _change("revoke", name, home, url, as_json, reason)


@nodes.command("wake")
def nodes_wake(name: Name, home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False) -> None:
    """Wake a sleeping machine that opted in, through a live node of its site."""
    done = api_of(home, url).post(f"/api/v1/nodes/{segment(name)}/wake", {})
    if as_json:
        show_json(done)
    elif done["awake"]:
        print(f"{done['node']} is awake")
    else:
        print(f"{', '.join(done['asked'])} wakes {done['node']}: 'panal nodes list' tells when it is there")


@keys.command("create")
def keys_create(
    name: Annotated[str, typer.Argument(help="What the key is for")] = "",
    role: Annotated[str, typer.Option(help="user, operator or admin")] = "user",
    data_class: Annotated[str | None, typer.Option(help="Class of what is sent with it")] = None,
    residency: Annotated[list[str] | None, typer.Option(help="Country where it may be handled")] = None,
    expires: Annotated[str, typer.Option(help="Life, such as 90d; empty: no end")] = "",
    principal: Annotated[str, typer.Option(help="Make it for a new principal of this name")] = "",
    model: Annotated[list[str] | None, typer.Option(help="Model or alias that it may use; none: all")] = None,
    home: HomeOption = None,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make an API key; it is shown once."""
    body: dict[str, Any] = {"name": name, "role": role, "new_principal": principal}
    if data_class is not None:
        body["data_class"] = data_class
    if residency:
        body["residency"] = residency
    if model:
        body["models"] = model
    if expires:
        body["life_s"] = round(duration_s(expires))
    made = api_of(home, url).post("/api/v1/keys", body)
    if as_json:
        show_json(made)
    else:
        print(made["secret"])


@keys.command("list")
def keys_list(home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False) -> None:
    """All keys, without their secrets."""
    columns = ("id", "name", "shown", "state", "role", "data_class", "residency", "models", "limits")
    show_rows(api_of(home, url).every("/api/v1/keys"), columns, as_json=as_json, empty="No keys.")


@keys.command("models")
def keys_models(
    name: Name,
    model: Annotated[list[str] | None, typer.Option(help="Model or alias that it may use")] = None,
    every: Annotated[bool, typer.Option("--all", help="It may use all models")] = False,
    home: HomeOption = None,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """Restrict a key to these names and no others; in force within two seconds."""
    if every == bool(model):
        raise BadRequest("Name the models with --model, once for each, or give --all.")
    body = {"models": [] if every else model}
    show_fields(api_of(home, url).call("PUT", f"/api/v1/keys/{segment(name)}/models", body), as_json=as_json)


@keys.command("tool-buffering")
def keys_tool_buffering(
    name: Name,
    value: Annotated[str, typer.Argument(help="stream: as they are made; whole: in one piece")],
    home: HomeOption = None,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """How a key's tool calls are sent where a request does not say; in force within two seconds."""
    path = f"/api/v1/keys/{segment(name)}/tool-buffering"
    show_fields(api_of(home, url).call("PUT", path, {"value": value}), as_json=as_json)


@keys.command("revoke")
def keys_revoke(
    name: Name, home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False
) -> None:
    """The key is good for nothing within two seconds."""
    show_fields(api_of(home, url).delete(f"/api/v1/keys/{segment(name)}"), as_json=as_json)


@usage.command("list")
def usage_list(
    limit: Annotated[int, typer.Option(help="How many records, newest first")] = 20,
    home: HomeOption = None,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """The newest usage records."""
    page = api_of(home, url).get("/api/v1/usage", limit=limit)
    columns = ("request", "model", "outcome", "prompt_tokens", "completion_tokens", "attempts", "total_s")
    show_rows(page["items"], columns, as_json=as_json, empty="No requests yet.")


@usage.command("totals")
def usage_totals(home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False) -> None:
    """Sums over all records."""
    show_fields(api_of(home, url).get("/api/v1/usage/totals"), as_json=as_json)


@audit.command("list")
def audit_list(
    limit: Annotated[int, typer.Option(help="How many events, newest first")] = 20,
    home: HomeOption = None,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """The newest audit events."""
    page = api_of(home, url).get("/api/v1/audit", limit=limit)
    columns = ("sequence", "action", "target", "outcome", "principal", "details")
    show_rows(page["items"], columns, as_json=as_json, empty="No events.")


@audit.command("verify")
def audit_verify(home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False) -> None:
    """Check that nothing in the chain was changed."""
    state = api_of(home, url).get("/api/v1/audit/verify")
    show_fields(state, as_json=as_json)
    if not state["whole"]:
        raise typer.Exit(1)
