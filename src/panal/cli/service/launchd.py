"""macOS: a property list of launchd. Written from Apple's documentation, tried by its text only."""

import plistlib
from pathlib import Path

from panal.cli.service.plan import RESTART_FIRST_S, STOP_S, Plan, Service, Step

SYSTEM_FOLDER = Path("/Library/LaunchDaemons")


def label(service: Service) -> str:
    return f"panal.{service.what}"


def property_list(service: Service) -> str:
    """The text of the file. launchd itself waits at least ten seconds between two starts.

    What the programs say is in their own logs, which are turned over; launchd's would grow for ever.
    """
    content: dict[str, object] = {
        "Label": label(service),
        "ProgramArguments": service.command(),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": max(10, RESTART_FIRST_S),
        "ExitTimeOut": STOP_S,
        "Umask": 0o077,
        "StandardOutPath": "/dev/null",
        "StandardErrorPath": "/dev/null",
    }
    if service.environment:
        content["EnvironmentVariables"] = dict(service.environment)
    if service.scope == "system":
        content["UserName"] = service.account
    else:
        content["LimitLoadToSessionType"] = "Aqua"
    return plistlib.dumps(content, sort_keys=True).decode()


def file_of(service: Service, user_home: Path) -> Path:
    folder = SYSTEM_FOLDER if service.scope == "system" else user_home / "Library" / "LaunchAgents"
    return folder / f"{label(service)}.plist"


def install(service: Service, user_home: Path, uid: int) -> Plan:
    """Write the file, and start it now and with every login or boot."""
    file = file_of(service, user_home)
    return Plan(
        files=((file, property_list(service)),),
        steps=(
            Step(("launchctl", "bootout", f"{_domain(service, uid)}/{label(service)}"), optional=True),
            Step(("launchctl", "bootstrap", _domain(service, uid), str(file))),
        ),
    )


def uninstall(service: Service, user_home: Path, uid: int) -> Plan:
    """Stop it and forget the file."""
    return Plan(
        steps=(Step(("launchctl", "bootout", f"{_domain(service, uid)}/{label(service)}"), optional=True),),
        removes=(file_of(service, user_home),),
        notes=(f"The node's identity and data stay in {service.home}.",),
    )


def status(service: Service, uid: int) -> tuple[str, ...]:
    return ("launchctl", "print", f"{_domain(service, uid)}/{label(service)}")


def _domain(service: Service, uid: int) -> str:
    return "system" if service.scope == "system" else f"gui/{uid}"
