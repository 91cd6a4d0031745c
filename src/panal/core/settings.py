"""Every setting of every program: one TOML file, then environment variables over it.

``[gateway] http_port = 7080`` in the file is ``PANAL_GATEWAY__HTTP_PORT=7080`` in the environment; a list
is written with commas there. Durations are numbers whose unit is in the name (``_s``), sizes likewise
(``_bytes``). A wrong setting stops the start with one sentence. Environment and file are arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

from panal.core.errors import SettingsError
from panal.core.settings_reading import (
    Masked,
    Rule,
    environment_values,
    file_values,
    loopback,
    read_value,
    shown,
    unknown_key,
)

MIB = 1024 * 1024


def setting(default: Any, text: str, **rule: Any) -> Any:
    """A field with its default, one line of help and its Rule."""
    return field(default=default, metadata={"text": text, "rule": Rule(**rule)})


@dataclass(frozen=True, slots=True, repr=False)
class GatewaySettings(Masked):
    """HTTP in and out, and the limits of one request."""

    http_host: str = setting("127.0.0.1", "loopback address of plain HTTP", check=loopback)
    http_port: int = setting(7080, "port of plain HTTP", low=1, high=65535)
    https_port: int = setting(7443, "port of HTTPS, used with 'listen'", low=1, high=65535)
    listen: str = setting("", "address for HTTPS and the bus with TLS; empty: loopback only")
    advertise: tuple[str, ...] = setting((), "addresses that joining nodes are told, HOST or HOST:PORT")
    tls_certificate: str = setting("", "PEM file of a certificate for HTTPS; empty: one of the own CA")
    tls_key: str = setting("", "PEM file of that certificate's private key")
    store_url: str = setting("", "database; empty: SQLite in the home", secret=True)
    queue_length_max: int = setting(512, "requests that may wait in one process", low=0, high=1_000_000)
    queue_wait_s_max: float = setting(30.0, "longest wait for a free replica", low=0, high=3600)
    first_token_s_max: float = setting(60.0, "longest wait for the first token", low=0.1, high=3600)
    between_tokens_s_max: float = setting(30.0, "longest pause inside an answer", low=0.1, high=3600)
    total_s_max: float = setting(600.0, "longest life of a request", low=1, high=86400)
    recovery_s_max: float = setting(10.0, "a broken answer waits for another replica", low=0, high=600)
    attempts_max: int = setting(3, "replicas tried for one request", low=1, high=10)
    body_bytes_max: int = setting(10 * MIB, "largest request body", low=1024, high=256 * MIB)
    header_bytes_max: int = setting(32 * 1024, "largest request line with headers", low=1024, high=MIB)
    headers_max: int = setting(100, "most headers of a request", low=10, high=1000)
    header_s_max: float = setting(5.0, "from connect to the end of the headers", low=0.1, high=300)
    body_gap_s_max: float = setting(10.0, "longest pause inside a request body", low=0.1, high=300)
    body_s_max: float = setting(120.0, "a request body must be there after", low=1, high=3600)
    keep_alive_s_max: float = setting(15.0, "an idle connection is closed after", low=0.1, high=3600)
    write_stall_s_max: float = setting(30.0, "a client that reads nothing is dropped after", low=1, high=300)
    connections_max: int = setting(8192, "client connections of one process", low=16, high=1_000_000)
    strangers_max: int = setting(64, "connections of one address without a key", low=1, high=100_000)


@dataclass(frozen=True, slots=True, repr=False)
class BusSettings(Masked):
    """The NATS server that panal starts itself."""

    nats_port: int = setting(7422, "port of the bus", low=1, high=65535)
    nats_server: str = setting("", "path of another nats-server; empty: the one that came with panal")


@dataclass(frozen=True, slots=True, repr=False)
class NodeSettings(Masked):
    """A node's agent and its engine."""

    engine: str = setting("embedded", "engine that the agent starts")
    threads: int = setting(0, "threads of the engine; 0: cores - 1", low=0, high=1024)
    slots: int = setting(4, "requests that the engine runs at once", low=1, high=1024)
    context_tokens: int = setting(4096, "context of each slot", low=128, high=4_194_304)
    exact: bool = setting(False, "same answer whatever else runs, at a cost in speed")
    cpu_when_gpu_lost: bool = setting(False, "serve on the processor, visibly, while the GPU is lost")
    gpu_reserve_bytes: int = setting(
        512 * MIB, "GPU memory left free beside a model", low=0, high=256 * 1024 * MIB
    )
    poll_s: float = setting(0.25, "time between two looks at the owner's input", low=0.02, high=0.25)
    credential_s: float = setting(3600.0, "life of a node's bus credential", low=10, high=86400)


@dataclass(frozen=True, slots=True, repr=False)
class OwnerSettings(Masked):
    """Overrides of the owner's policy on this machine; unset: the default of the node's class."""

    idle_s: float | None = setting(None, "without input before the node is free", low=1, high=86400)
    cooldown_s: float | None = setting(None, "without input after a yield", low=0, high=86400)
    grace_s: float | None = setting(None, "attempts may still end after the hand-over began", low=0, high=2)
    engine_stop_s: float | None = setting(None, "a stopping engine is killed after", low=0.1, high=5)
    memory_back_s_max: float | None = setting(None, "memory must be back after", low=1, high=10)
    sensor_stale_s: float | None = setting(None, "an older reading counts as input", low=1, high=60)


@dataclass(frozen=True, slots=True, repr=False)
class LogSettings(Masked):
    """Logs as JSON lines."""

    level: str = setting(
        "info", "least important level that is written", choices=("debug", "info", "warning", "error")
    )
    file_bytes_max: int = setting(10 * MIB, "a log file is turned over at", low=64 * 1024, high=1024 * MIB)
    keep: int = setting(5, "old log files kept", low=0, high=100)


@dataclass(frozen=True, slots=True, repr=False)
class Settings(Masked):
    """All sections. ``sources`` says per key where a value that is no default came from."""

    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    bus: BusSettings = field(default_factory=BusSettings)
    node: NodeSettings = field(default_factory=NodeSettings)
    owner: OwnerSettings = field(default_factory=OwnerSettings)
    log: LogSettings = field(default_factory=LogSettings)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    SECTIONS: ClassVar[Mapping[str, type[Masked]]] = {
        "gateway": GatewaySettings,
        "bus": BusSettings,
        "node": NodeSettings,
        "owner": OwnerSettings,
        "log": LogSettings,
    }


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One line of ``panal config show``; secrets are masked."""

    key: str
    default: str
    value: str
    source: str
    text: str


def load(file: Path | None, environment: Mapping[str, str]) -> Settings:
    """The settings of this start. ``file`` None: none is read. Raises SettingsError for the first fault."""
    settings, faults = _read(file, environment)
    if faults:
        raise SettingsError(faults[0])
    return settings


def check(file: Path | None, environment: Mapping[str, str]) -> list[str]:
    """Every fault, a sentence each; empty when the programs would start."""
    return _read(file, environment)[1]


def describe(settings: Settings) -> list[SettingRow]:
    """Every setting, in the order of the file."""
    rows = []
    for section, kind in Settings.SECTIONS.items():
        values = getattr(settings, section)
        for item in kind.items():
            key = f"{section}.{item.name}"
            rule = cast(Rule, item.metadata["rule"])
            rows.append(
                SettingRow(
                    key=key,
                    default=shown(item.default, rule),
                    value=shown(getattr(values, item.name), rule),
                    source=settings.sources.get(key, "default"),
                    text=item.metadata["text"],
                )
            )
    return rows


def _read(file: Path | None, environment: Mapping[str, str]) -> tuple[Settings, list[str]]:
    keys = {
        f"{section}.{item.name}": (section, item)
        for section, kind in Settings.SECTIONS.items()
        for item in kind.items()
    }
    found, faults = file_values(file, set(Settings.SECTIONS)) if file is not None else ([], [])
    more, env_faults = environment_values(environment, set(Settings.SECTIONS))
    faults += env_faults
    values: dict[str, dict[str, Any]] = {section: {} for section in Settings.SECTIONS}
    sources: dict[str, str] = {}
    for given in [*found, *more]:
        if given.key not in keys:
            faults.append(unknown_key(given, list(keys)))
            continue
        section, item = keys[given.key]
        hint = Settings.SECTIONS[section].hints()[item.name]
        try:
            values[section][item.name] = read_value(given, hint, item.metadata["rule"])
        except SettingsError as error:
            faults.append(error.message)
        sources[given.key] = given.source
    if faults:
        return Settings(), faults
    sections = {section: kind(**values[section]) for section, kind in Settings.SECTIONS.items()}
    return Settings(**cast(Any, sections), sources=sources), []
