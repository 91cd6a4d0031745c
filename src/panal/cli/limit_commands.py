"""``panal limits``: how much a key, a project or a tenant may use."""

from typing import Annotated, Any

import typer

from panal.cli.access import api_of
from panal.cli.admin_commands import HomeOption, JsonOption, UrlOption
from panal.cli.api_client import segment
from panal.cli.output import show_json, show_rows

COLUMNS = ("subject", "limit", "amount")
Subject = Annotated[str, typer.Argument(help="Id of a key, a project or a tenant")]

limits = typer.Typer(no_args_is_help=True, help="How much keys, projects and tenants may use")


@limits.command("set")
def limits_set(
    subject: Subject,
    requests_per_minute: Annotated[int | None, typer.Option(help="Requests in a UTC minute")] = None,
    requests_per_day: Annotated[int | None, typer.Option(help="Requests in a UTC day")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Tokens in a UTC minute")] = None,
    tokens_per_day: Annotated[int | None, typer.Option(help="Tokens in a UTC day")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests that run at once")] = None,
    home: HomeOption = None,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """Set limits; those not named stay as they are. In force within two seconds."""
    wanted = {
        "requests_per_minute": requests_per_minute,
        "requests_per_day": requests_per_day,
        "tokens_per_minute": tokens_per_minute,
        "tokens_per_day": tokens_per_day,
        "concurrency": concurrency,
    }
    body = {name: amount for name, amount in wanted.items() if amount is not None}
    _show(api_of(home, url).call("PUT", f"/api/v1/limits/{segment(subject)}", body), as_json)


@limits.command("list")
def limits_list(
    subject: Annotated[str, typer.Argument(help="Only of this key, project or tenant")] = "",
    home: HomeOption = None,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """All limits."""
    _show(api_of(home, url).get("/api/v1/limits", subject=subject), as_json)


@limits.command("clear")
def limits_clear(
    subject: Subject,
    limit: Annotated[str, typer.Option(help="Only this one, such as tokens_per_minute")] = "",
    home: HomeOption = None,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take limits away."""
    path = f"/api/v1/limits/{segment(subject)}"
    if limit:
        path += f"?limit={segment(limit)}"
    _show(api_of(home, url).delete(path), as_json)


def _show(page: Any, as_json: bool) -> None:
    if as_json:
        show_json(page["items"])
    else:
        show_rows(page["items"], COLUMNS, as_json=False, empty="No limits.")
