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
from panal.core.proxies import proxy_fault
from panal.core.settings_reading import (
    Masked,
    Rule,
    environment_values,
    file_values,
    http_address,
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

    processes: int = setting(1, "gateway processes on this host that share its ports", low=1, high=64)
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
    attempts_max: int = setting(3, "tries until an answer begins", low=1, high=10)
    resumes_max: int = setting(3, "times a begun answer goes on elsewhere", low=0, high=100)
    kept_bytes_max: int = setting(256 * MIB, "kept of running answers", low=64 * 1024, high=256 * 1024 * MIB)
    hold_bytes_max: int = setting(MIB, "held back of an answer that could not go on", low=0, high=16 * MIB)
    tools_whole_models: tuple[str, ...] = setting((), "models whose tool calls are sent in one piece")
    comment_each_s: float = setting(10.0, "a silent stream gets a comment line after", low=0.1, high=300)
    body_bytes_max: int = setting(10 * MIB, "largest request body", low=1024, high=256 * MIB)
    header_bytes_max: int = setting(32 * 1024, "largest request line with headers", low=1024, high=MIB)
    headers_max: int = setting(100, "most headers of a request", low=10, high=1000)
    header_s_max: float = setting(5.0, "from connect to the end of the headers", low=0.1, high=300)
    body_gap_s_max: float = setting(10.0, "longest pause inside a request body", low=0.1, high=300)
    body_s_max: float = setting(120.0, "a request body must be there after", low=1, high=3600)
    keep_alive_s_max: float = setting(15.0, "an idle connection is closed after", low=0.1, high=3600)
    write_stall_s_max: float = setting(30.0, "a client that reads nothing is dropped after", low=1, high=300)
    connections_max: int = setting(8192, "client connections of one process", low=16, high=1_000_000)
    usage_keep_days: int = setting(0, "older usage records are removed; 0: kept for ever", low=0, high=36500)
    strangers_max: int = setting(64, "connections of one address without a key", low=1, high=100_000)


@dataclass(frozen=True, slots=True, repr=False)
class BusSettings(Masked):
    """The NATS server that panal starts itself, or the one that a gateway goes to."""

    nats_port: int = setting(7422, "port of the bus", low=1, high=65535)
    nats_server: str = setting("", "path of another nats-server; empty: the one that came with panal")
    urls: tuple[str, ...] = setting((), "bus of another host, tls://HOST:PORT; empty: the one on this host")


@dataclass(frozen=True, slots=True, repr=False)
class NodeSettings(Masked):
    """A node's agent and its engine."""

    engine: str = setting("embedded", "engine that the agent starts")
    threads: int = setting(0, "threads of the engine; 0: cores - 1", low=0, high=1024)
    slots: int = setting(4, "requests that the engine runs at once", low=1, high=1024)
    context_tokens: int = setting(4096, "context of each slot", low=128, high=4_194_304)
    start_s_max: float = setting(120.0, "a start of the engine may stand still for", low=1, high=86400)
    exact: bool = setting(False, "same answer whatever else runs, at a cost in speed")
    cpu_when_gpu_lost: bool = setting(False, "serve on the processor, visibly, while the GPU is lost")
    gpu_reserve_bytes: int = setting(
        512 * MIB, "GPU memory left free beside a model", low=0, high=256 * 1024 * MIB
    )
    wake: bool = setting(False, "may be woken from sleep; its network cards' addresses are told for that")
    poll_s: float = setting(0.25, "time between two looks at the owner's input", low=0.02, high=0.25)
    proxy: str = setting(
        "",
        "proxy towards gateway and bus, http://[user:password@]host:port; empty: HTTPS_PROXY; none: none",
        secret=True,
        check=proxy_fault,
    )
    no_proxy: tuple[str, ...] = setting((), "hosts reached without the proxy, beside those in NO_PROXY")
    credential_s: float = setting(3600.0, "life of a node's bus credential", low=10, high=86400)


@dataclass(frozen=True, slots=True, repr=False)
class OwnerSettings(Masked):
    """Overrides of the owner's policy on this machine; unset: the default of the node's class."""

    idle_s: float | None = setting(None, "without input before the node is free", low=1, high=86400)
    cooldown_s: float | None = setting(None, "without input after a yield", low=0, high=86400)
    cooldown_s_max: float | None = setting(None, "longest cooldown of a busy desk", low=1, high=86400)
    grace_s: float | None = setting(None, "attempts may still end after the hand-over began", low=0, high=2)
    engine_stop_s: float | None = setting(None, "a stopping engine is killed after", low=0.1, high=5)
    memory_back_s_max: float | None = setting(None, "memory must be back after", low=1, high=10)
    sensor_stale_s: float | None = setting(None, "an older reading counts as input", low=1, high=60)
    sharing: str | None = setting(None, "what the owner's input means", choices=("strict", "polite", "share"))
    nobody_s: float | None = setting(None, "with nobody logged in before the node is free", low=1, high=86400)
    locked_s: float | None = setting(None, "with a locked screen before the node is free", low=1, high=86400)
    gpu_counts: bool | None = setting(None, "use of the GPU by others ends work")
    gpu_free_s: float | None = setting(None, "GPU without other use before a start", low=0, high=3600)
    work_on_battery: bool | None = setting(None, "a battery does not end work")
    halve_s: float | None = setting(None, "slowed down by heat before half the slots", low=1, high=600)
    heat_s: float | None = setting(None, "slowed down by heat before the node yields", low=2, high=3600)
    warm_s_max: float | None = setting(None, "an engine must serve after", low=5, high=3600)
    keep_model_s: float | None = setting(None, "an idle engine may outlast input by", low=0, high=600)
    unload_s: float | None = setting(None, "without a request before the engine stops", low=0, high=604800)
    bus_unload_s: float | None = setting(None, "without the bus before the engine stops", low=5, high=86400)
    hours: str = setting("", "when the node may work, 'mo-fr 18:00-08:00, sa-su 00:00-24:00'; empty: always")
    programs: tuple[str, ...] = setting((), "names of programs that end work while they run")
    memory_bytes_max: int = setting(0, "engine's main memory; 0: no cap", low=0, high=10**15)
    gpu_memory_bytes_max: int = setting(0, "engine's GPU memory; 0: no cap", low=0, high=10**15)
    power_w_max: float = setting(0.0, "GPU's power; 0: no cap", low=0, high=5000)
    weights_bytes_max: int = setting(0, "cache of weights; 0: no cap", low=0, high=10**15)
    disk_free_bytes_min: int = setting(512 * MIB, "disk that must stay free", low=0, high=10**15)


@dataclass(frozen=True, slots=True, repr=False)
class LogSettings(Masked):
    """Logs as JSON lines."""

    level: str = setting(
        "info", "least important level that is written", choices=("debug", "info", "warning", "error")
    )
    file_bytes_max: int = setting(10 * MIB, "a log file is turned over at", low=64 * 1024, high=1024 * MIB)
    keep: int = setting(5, "old log files kept", low=0, high=100)


@dataclass(frozen=True, slots=True, repr=False)
class TelemetrySettings(Masked):
    """Traces, sent to a collector by OTLP over HTTP. Off unless an endpoint is set."""

    traces_endpoint: str = setting(
        "", "collector of traces, http(s)://host:4318; empty: off", check=http_address
    )
    traces_ratio: float = setting(
        1.0, "share of requests traced where the client does not say", low=0, high=1
    )
    traces_headers: tuple[str, ...] = setting((), "NAME=VALUE that the collector wants", secret=True)
    gateway_service: str = setting("panal-gateway", "service.name of gateways in traces")
    agent_service: str = setting("panal-agent", "service.name of agents in traces")


@dataclass(frozen=True, slots=True, repr=False)
class Settings(Masked):
    """All sections. ``sources`` says per key where a value that is no default came from."""

    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    bus: BusSettings = field(default_factory=BusSettings)
    node: NodeSettings = field(default_factory=NodeSettings)
    owner: OwnerSettings = field(default_factory=OwnerSettings)
    log: LogSettings = field(default_factory=LogSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    SECTIONS: ClassVar[Mapping[str, type[Masked]]] = {
        "gateway": GatewaySettings,
        "bus": BusSettings,
        "node": NodeSettings,
        "owner": OwnerSettings,
        "log": LogSettings,
        "telemetry": TelemetrySettings,
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
