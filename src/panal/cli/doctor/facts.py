"""What the probes found on this machine, as plain values. None or empty: there is none here."""

from dataclasses import dataclass
from typing import Literal

from panal.core.gpus import GpuFacts

PortState = Literal["free", "ours", "taken"]


@dataclass(frozen=True, slots=True)
class Library:
    """``wanted`` as the package asks for it, such as ``>=1.2,<2``; ``found`` empty: not installed."""

    name: str
    wanted: str
    found: str


@dataclass(frozen=True, slots=True)
class Port:
    setting: str
    number: int
    state: PortState


@dataclass(frozen=True, slots=True)
class CertificateFact:
    """``left_s`` seconds until it ends; ``problem`` says why it cannot be used."""

    path: str
    left_s: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Disk:
    what: str
    path: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class StoreFact:
    """``revision`` empty: there is no database yet. ``newest`` is what this program makes of it."""

    kind: str
    revision: str = ""
    newest: str = ""
    known: bool = True
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NodeFact:
    """This machine's node. ``sensor_problem`` empty: the owner's input can be seen, or there is no owner."""

    name: str
    node_class: str
    agent_runs: bool
    paused: bool
    credential_left_s: float
    sensor_problem: str = ""


@dataclass(frozen=True, slots=True)
class ProcessesFact:
    """Gateway processes of this host: how many are set, and the numbers of those that run and of those that
    ended and did not come back. ``shared``: several can run here."""

    wanted: int
    running: tuple[int, ...]
    ended: tuple[int, ...] = ()
    shared: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    """``clock_ahead_s``: this machine's clock minus the gateway's. ``gateway_problem`` empty: it answers.

    ``proxy_used``: host and port of the proxy through which this node reaches gateway and bus.
    """

    settings_faults: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    libraries: tuple[Library, ...] = ()
    nats_version: tuple[int, ...] = ()
    nats_problem: str = ""
    gateway_url: str = ""
    gateway_problem: str = ""
    clock_ahead_s: float | None = None
    clock_jump_s: float = 0.0
    ports: tuple[Port, ...] = ()
    certificates: tuple[CertificateFact, ...] = ()
    unresolved_names: tuple[str, ...] = ()
    resolved_names: tuple[str, ...] = ()
    proxy_variables: tuple[str, ...] = ()
    proxy_used: str = ""
    engine: str = ""
    engine_problem: str = ""
    disks: tuple[Disk, ...] = ()
    readable_secrets: tuple[str, ...] = ()
    secrets: int = 0
    store: StoreFact | None = None
    bus_problem: str | None = None
    node: NodeFact | None = None
    processes: ProcessesFact | None = None
    gpus: tuple[GpuFacts, ...] = ()
    gpu_problem: str = ""
