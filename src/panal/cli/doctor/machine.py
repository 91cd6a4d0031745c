"""Looks at programs, files and ports of this machine."""

import importlib.util
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import psutil

from panal.bus.nats_server import find_binary
from panal.cli.addresses import Addresses
from panal.cli.doctor.facts import CertificateFact, Disk, Library, Port, PortState, ProcessesFact
from panal.cli.doctor.versions import numbers, requirement
from panal.cli.home import Home
from panal.core.clock import SystemClock
from panal.core.errors import SettingsError
from panal.core.settings import Settings
from panal.gateway.sockets import SHARED
from panal.identity.certificates import certificate_end_utc_s
from panal.node.weights import SMOLLM2_135M, ModelCache, cache_folder
from panal.telemetry.exchange import snapshots_in

PROGRAM_S_MAX = 5.0
PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def libraries() -> tuple[Library, ...]:
    """What the installed package asks for; what only other systems need is left out where it is missing."""
    try:
        wanted = metadata.requires("panal") or []
    except metadata.PackageNotFoundError:
        return ()
    found = []
    for text in wanted:
        name, clauses, everywhere = requirement(text)
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = ""
        if version or everywhere:
            found.append(Library(name, clauses, version))
    return tuple(found)


def nats_version(given: str) -> tuple[tuple[int, ...], str]:
    """The version of the nats-server that would be started, or why it cannot be."""
    try:
        binary = find_binary(Path(given) if given else None)
        told = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False
        ).stdout
    except SettingsError as error:
        return (), error.message
    except (OSError, subprocess.TimeoutExpired) as error:
        return (), f"nats-server cannot be run: {error}"
    version = numbers(told.rpartition(" ")[2].strip())
    return version, "" if version else "nats-server does not say its version"


def ports(home: Home, settings: Settings, addresses: Addresses) -> tuple[Port, ...]:
    wanted = (
        ("gateway.http_port", settings.gateway.http_host, settings.gateway.http_port),
        ("gateway.https_port", addresses.listen_host, settings.gateway.https_port),
        *([] if settings.bus.urls else [("bus.nats_port", addresses.listen_host, settings.bus.nats_port)]),
    )
    return tuple(Port(name, number, _port_state(home, host, number)) for name, host, number in wanted)


def _port_state(home: Home, host: str, number: int) -> PortState:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as taken:
            if sys.platform != "win32":
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(address)
    except OSError:
        return "ours" if _held_by_us(home, number) else "taken"
    return "free"


def _held_by_us(home: Home, number: int) -> bool:
    """Whether the program that listens there was started for this home; False where one cannot see that."""
    try:
        listening = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return False
    for each in listening:
        if each.laddr and each.laddr.port == number and each.status == psutil.CONN_LISTEN and each.pid:
            try:
                words = psutil.Process(each.pid).cmdline()
            except psutil.Error:
                continue
            if any(str(home.path) in word for word in words):
                return True
    return False


def processes(home: Home, settings: Settings) -> ProcessesFact | None:
    """None before the first start."""
    found = snapshots_in(home.metrics)
    if not found:
        return None
    return ProcessesFact(
        settings.gateway.processes,
        running=tuple(each.number for each in found if each.lives),
        ended=tuple(each.number for each in found if not each.lives),
        shared=SHARED,
    )


def certificates(home: Home) -> tuple[CertificateFact, ...]:
    now_s = SystemClock().utc_seconds()
    found = []
    for path in sorted((home.path / "ca").glob("*.pem")):
        if path.name.endswith("-key.pem"):
            continue
        try:
            found.append(CertificateFact(str(path), certificate_end_utc_s(path) - now_s))
        except SettingsError as error:
            found.append(CertificateFact(str(path), problem=error.message.removeprefix(f"{path} ")))
    return tuple(found)


def proxy_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables by which clients would send a request for 127.0.0.1 to a proxy."""
    spared = ",".join((environment.get("no_proxy", ""), environment.get("NO_PROXY", "")))
    entries = {entry.strip() for entry in spared.split(",")}
    if "*" in entries or {"127.0.0.1", "localhost"} <= entries:
        return ()
    return tuple(name for name in PROXIES if environment.get(name))


def engine(kind: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """The engine that this machine's node would start, or why it could not."""
    if kind != "embedded":
        return kind, ""
    if importlib.util.find_spec("xllamacpp") is None:
        return "", "the embedded engine's library xllamacpp is not installed"
    try:
        path = ModelCache(cache_folder(environment)).require(SMOLLM2_135M)
    except SettingsError as error:
        return "", error.message
    return f"embedded, its model is in the cache ({path.name})", ""


def disks(home: Home, environment: Mapping[str, str]) -> tuple[Disk, ...]:
    found = []
    for what, folder in (("home", home.path), ("model cache", cache_folder(environment))):
        there = next((each for each in (folder, *folder.parents) if each.exists()), None)
        if there is not None:
            found.append(Disk(what, str(folder), shutil.disk_usage(there).free))
    return tuple(found)


def secrets_of(home: Home) -> tuple[int, tuple[str, ...]]:
    """How many secret files there are, and those that others can read. Windows says nothing by modes."""
    files = [
        home.admin_file,
        home.path / "secrets" / "pepper",
        home.path / "nats" / "authority.json",
        home.path / "ca" / "ca.pem",
        *(home.path / "ca").glob("*-key.pem"),
        home.path / "panal.db",
        home.agent / "node.json",
    ]
    there = [path for path in files if path.exists()]
    if sys.platform == "win32":
        return len(there), ()
    return len(there), tuple(str(path) for path in there if stat.S_IMODE(path.stat().st_mode) & 0o077)
