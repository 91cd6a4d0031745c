"""Linux: a unit of systemd, for one user without root or for the whole machine."""

from pathlib import Path, PurePath

from panal.cli.service.plan import (
    DESCRIPTIONS,
    RESTART_FIRST_S,
    RESTART_LAST_S,
    STOP_S,
    Plan,
    Service,
    Step,
)

SYSTEM_FOLDER = Path("/etc/systemd/system")

BACK_OFF_VERSION = 254
"""From this version on systemd itself waits longer with each restart; older ones get one longer pause."""
RESTART_OLD_S = 30


def unit(service: Service, version: int) -> str:
    """The text of the unit file for systemd of this version.

    A user's agent on a desktop starts with the graphical session, since it must see the owner's input.
    """
    system = service.scope == "system"
    graphical = service.on_desktop and not system
    target = "graphical-session.target" if graphical else "multi-user.target" if system else "default.target"
    backs_off = version >= BACK_OFF_VERSION
    lines = [
        "[Unit]",
        f"Description={DESCRIPTIONS[service.what]}",
        *(["Wants=network-online.target", "After=network-online.target"] if system else []),
        *(["PartOf=graphical-session.target", "After=graphical-session.target"] if graphical else []),
        # The back-off below replaces the limit on starts: a service that was given up helps nobody.
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        "ExecStart=" + " ".join(quoted(word) for word in service.command()),
        "ExecReload=/bin/kill -HUP $MAINPID",
        *(f"Environment={quoted(f'{name}={value}', runs=False)}" for name, value in service.environment),
        *([f"User={service.account}"] if system else []),
        "",
        "Restart=on-failure",
        f"RestartSec={RESTART_FIRST_S if backs_off else RESTART_OLD_S}",
        *(["RestartSteps=6", f"RestartMaxDelaySec={RESTART_LAST_S}"] if backs_off else []),
        "",
        "# The main program is asked first and ends its engine itself; what is left after that is killed.",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_S}",
        "",
        "# panal writes and turns over its own logs; only what goes wrong before that is for the journal.",
        "StandardOutput=null",
        "",
        *_hardening(service),
        "",
        "[Install]",
        f"WantedBy={target}",
    ]
    return "\n".join(lines) + "\n"


def _hardening(service: Service) -> list[str]:
    """What the service may not do. GPUs, the model cache and children of its own it needs.

    It has the usual priority: an agent that waits for the processor yields late. Its engine has the lowest.
    """
    lines = [
        "NoNewPrivileges=yes",
        "RestrictSUIDSGID=yes",
        "LockPersonality=yes",
        "RestrictRealtime=yes",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
        "SystemCallArchitectures=native",
        "UMask=0077",
        "OOMPolicy=continue",
        "LimitNOFILE=65536",
    ]
    if service.scope == "system":
        lines += [
            "ProtectSystem=strict",
            f"ReadWritePaths={' '.join(quoted(path, runs=False) for path in _written(service))}",
            "PrivateTmp=yes",
            "ProtectKernelTunables=yes",
            "ProtectKernelModules=yes",
            "ProtectControlGroups=yes",
            "RestrictNamespaces=yes",
            "CapabilityBoundingSet=",
            "# No PrivateDevices: engines need the GPU. No MemoryDenyWriteExecute: they compile for it.",
        ]
    return lines


def _written(service: Service) -> list[str]:
    """The folders that it writes to; the cache may be missing."""
    cache = dict(service.environment).get("PANAL_CACHE", "")
    outside = cache and not PurePath(cache).is_relative_to(service.home)
    return [str(service.home), *([f"-{cache}"] if outside else [])]


def quoted(word: str, *, runs: bool = True) -> str:
    """A word as systemd reads it. ``runs``: in a command line, the only place where it expands ``$``."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    escaped = escaped.replace("$", "$$") if runs else escaped
    return f'"{escaped}"' if not word or any(each in word for each in " \t\"'\\;") else escaped


def unit_file(service: Service, config_home: Path) -> Path:
    """Where the unit belongs. ``config_home``: the user's XDG_CONFIG_HOME."""
    folder = SYSTEM_FOLDER if service.scope == "system" else config_home / "systemd" / "user"
    return folder / f"{service.name}.service"


def install(service: Service, config_home: Path, version: int) -> Plan:
    """Write the unit, and start it now and with every login or boot."""
    notes = []
    if service.scope == "user" and not service.on_desktop:
        notes.append("It runs while you are logged in; 'loginctl enable-linger' keeps it running after that.")
    if service.scope == "system":
        notes.append(f"It runs as the user '{service.account}', who must exist and own {service.home}.")
        if service.what == "agent":
            notes.append("It sees no desktop: on a machine with an owner install it for that user instead.")
    return Plan(
        files=((unit_file(service, config_home), unit(service, version)),),
        steps=(_ctl(service, "daemon-reload"), _ctl(service, "enable", f"{service.name}.service"),
               _ctl(service, "restart", f"{service.name}.service")),
        notes=tuple(notes),
    )  # fmt: skip


def uninstall(service: Service, config_home: Path) -> Plan:
    """Stop it and forget the unit."""
    return Plan(
        steps=(_ctl(service, "disable", "--now", f"{service.name}.service", optional=True),),
        removes=(unit_file(service, config_home),),
        notes=(f"The node's identity and data stay in {service.home}.",),
    )


def status(service: Service) -> tuple[str, ...]:
    """The command that tells the state, as ``Name=value`` lines."""
    shown = "LoadState,ActiveState,SubState,NRestarts,MainPID,UnitFileState"
    return _ctl(service, "show", f"{service.name}.service", f"--property={shown}").command


def _ctl(service: Service, *words: str, optional: bool = False) -> Step:
    scope = ("--user",) if service.scope == "user" else ()
    return Step(("systemctl", *scope, *words), optional)
