"""``panal usage prune``: old usage records go."""

import re
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from panal.cli.access import api_of
from panal.cli.admin_commands import HomeOption, JsonOption, UrlOption, usage
from panal.cli.output import show_json
from panal.core.clock import SystemClock
from panal.core.errors import BadRequest

__all__ = ["usage"]

_AGE = re.compile(r"(\d{1,5})([dw])")
_DAYS = {"d": 1, "w": 7}


@usage.command("prune")
def usage_prune(
    older_than: Annotated[str, typer.Option(help="Age of what goes, such as 400d or 60w; a day at least")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many")] = False,
    home: HomeOption = None,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove old usage records and their contributions, page by page. Ctrl-C stops between two pages."""
    api = api_of(home, url)
    before_utc_s = SystemClock().utc_seconds() - age_s(older_than)
    body = {"before_utc_s": before_utc_s, "dry_run": True}
    total = api.post("/api/v1/usage/prune", body)["records"]
    removed, stopped = 0, False
    columns = (TextColumn("removing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=dry_run or total == 0) as progress:
        task = progress.add_task("records", total=total)
        try:
            while not dry_run:
                answer = api.post("/api/v1/usage/prune", {"before_utc_s": before_utc_s})
                removed += answer["records"]
                progress.update(task, completed=removed, total=max(total, removed))
                if not answer["more"]:
                    break
        except KeyboardInterrupt:
            stopped = True
    if as_json:
        show_json({"found": total, "removed": removed, "before_utc_s": before_utc_s, "stopped": stopped})
    elif dry_run:
        print(f"{total} usage records are older than {older_than}.")
    else:
        rest = " Stopped; run it again for the rest." if stopped else ""
        print(f"{removed} usage records removed.{rest}")
    if stopped:
        raise typer.Exit(130)


def age_s(text: str) -> float:
    """``400d`` in seconds. Raises BadRequest."""
    match = _AGE.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise BadRequest(f"'{text}' is no age: write days or weeks, such as 400d or 60w.")
    return float(int(match[1]) * _DAYS[match[2]] * 86_400)
