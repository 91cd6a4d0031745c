"""``panal desk``: the owner's own switch. It works with every server unreachable and beats every policy."""

import asyncio
import contextlib
import os
import secrets
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from panal.cli.durations import duration_s, size_bytes
from panal.cli.home import home_of
from panal.cli.output import show_json
from panal.core.clock import SystemClock
from panal.core.errors import SettingsError
from panal.core.nodes import NodeClass
from panal.node.desk import Desk
from panal.node.desk_limits import DeskLimits, LimitsFile
from panal.node.desk_page import DeskPage

desk = typer.Typer(no_args_is_help=True, help="This machine's owner decides")

HomeOption = Annotated[Path | None, typer.Option("--home", help="Folder of the installation")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of words")]


def _home(home: Path | None) -> Path:
    folder = home_of(home, os.environ).agent
    if not folder.is_dir():
        raise SettingsError(f"There is no node on this machine ({folder}).")
    return folder


def _desk(home: Path | None) -> Desk:
    return Desk(_home(home), SystemClock())


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
    for name, word in status.sensors.items():
        print(f"  {name:20} {word}")
    if status.paused:
        print(f"  paused {_until(status.paused_until_utc_s)}")


@desk.command("limits")
def desk_limits(
    memory: Annotated[str, typer.Option("--memory", help="Main memory of the engine, such as 4GiB")] = "",
    gpu_memory: Annotated[str, typer.Option("--gpu-memory", help="GPU memory of the engine")] = "",
    power: Annotated[float | None, typer.Option("--power", help="Watts, where the system allows it")] = None,
    hours: Annotated[str, typer.Option("--hours", help="When the node may work: 'mo-fr 18:00-08:00'")] = "",
    program: Annotated[list[str] | None, typer.Option("--program", help="Ends work while it runs")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Forget what was set before")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show or set your own limits. They can only be stricter than what the operators set."""
    folder = _home(home)
    kept = DeskLimits(folder)
    limits = LimitsFile() if clear else kept.owner()
    given = {
        "memory_bytes_max": size_bytes(memory) if memory else None,
        "gpu_memory_bytes_max": size_bytes(gpu_memory) if gpu_memory else None,
        "power_w_max": power,
        "hours": hours or None,
        "programs": program or None,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if changes or clear:
        limits = msgspec.structs.replace(limits, **changes)
        kept.write(limits)
    told = {name: getattr(limits, name) for name in given}
    if as_json:
        show_json(told)
        return
    for name, value in told.items():
        print(f"{name:22} {value if value not in (None, '', []) else 'no limit of yours'}")


@desk.command("page")
def desk_page(
    port: Annotated[int, typer.Option("--port", help="Port on 127.0.0.1; 0: any that is free")] = 0,
    home: HomeOption = None,
) -> None:
    """Show a small page on this machine alone, until Ctrl-C."""
    page = DeskPage(_desk(home), secrets.token_urlsafe(32))

    async def serve() -> None:
        await page.start(port)
        print(page.url, flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            await page.close()

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve())
    except OSError as error:
        raise SettingsError(f"The page cannot listen on port {port}: {error.strerror}.") from None


@desk.command("helper")
def desk_helper(
    session: Annotated[str, typer.Option("--session", help="A name for this session")] = "session",
    home: HomeOption = None,
) -> None:
    """Tell an agent that runs as a service when this session was used last, until Ctrl-C."""
    from panal.node.hardware.idle import sensor_for
    from panal.node.hardware.idle_helper import Helper, helper_file

    clock = SystemClock()
    sensor = sensor_for(NodeClass.DESKTOP, sys.platform, os.environ, clock)
    helper = Helper(helper_file(_home(home), session), sensor, clock)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            helper.look()
            time.sleep(0.25)


def _until(utc_s: float | None) -> str:
    if utc_s is None:
        return "until you resume it: panal desk resume"
    return "until " + datetime.fromtimestamp(utc_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
