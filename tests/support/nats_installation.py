"""A real bus for tests: CA, authority and nats-server in a temporary home."""

import asyncio
import os
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from panal.bus.authority_file import authority_path, create_or_load_authority
from panal.bus.claims_update import push_claims
from panal.bus.connector import Servers
from panal.bus.nats_bus import NatsControllerBus, NatsGatewayBus, NatsNodeBus
from panal.bus.nats_config import NatsServerSettings, TlsFiles
from panal.bus.nats_server import NatsServer
from panal.bus.nkeys import KeyKind, SigningKey
from panal.core.clock import SystemClock
from panal.core.ids import GatewayId, NodeKey
from panal.identity.certificates import create_or_load_ca, server_certificate

LOCAL_NAMES = ("127.0.0.1", "localhost")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class NatsInstallation:
    """Everything that ``panal up --listen`` would prepare for the bus."""

    def __init__(self, home: Path, *, encrypted: bool = True) -> None:
        self.home = home
        self.clock = SystemClock()
        self.random = random.Random(7)
        self.ca = create_or_load_ca(home, self.clock)
        files, _ = server_certificate(home, "bus", self.ca, LOCAL_NAMES, self.clock)
        tls = TlsFiles(files.certificate, files.key, files.ca) if encrypted else None
        self.authority = create_or_load_authority(authority_path(home), self.clock, os.urandom)
        self.settings = NatsServerSettings(home=home, port=free_port(), tls=tls)
        self.server = NatsServer(self.settings, self.authority)
        self.encrypted = encrypted

    @property
    def servers(self) -> Servers:
        return self.servers_at([self.server.url])

    def servers_at(self, urls: Sequence[str]) -> Servers:
        return Servers.at(list(urls), self.ca.pem if self.encrypted else "")

    def new_key(self) -> SigningKey:
        return SigningKey.create(KeyKind.USER, os.urandom)

    def credential(self, key: SigningKey, valid_s: float = 3600.0) -> str:
        return self.authority.node_credential(NodeKey(key.public), valid_s)

    def node(self, key: SigningKey, credential: str = "") -> NatsNodeBus:
        return NatsNodeBus(
            self.servers, key, credential or self.credential(key), randomness=self.random.random
        )

    def gateway(self, gateway: GatewayId, credential_s: float = 3600.0) -> NatsGatewayBus:
        return NatsGatewayBus(
            gateway,
            self.servers,
            self.authority,
            entropy=os.urandom,
            randomness=self.random.random,
            credential_s=credential_s,
        )

    def controller(self) -> NatsControllerBus:
        return NatsControllerBus(
            self.servers, self.authority, entropy=os.urandom, randomness=self.random.random
        )

    async def push(self, account_jwt: str) -> None:
        await push_claims(
            self.servers, self.authority, account_jwt, entropy=os.urandom, randomness=self.random.random
        )

    def kill_server(self) -> None:
        """As ``kill -9`` would."""
        assert self.server.pid is not None
        os.kill(self.server.pid, 9)

    async def restart_server(self) -> None:
        """Start a new process on the same port and files after the old one ended."""
        async with asyncio.timeout(10):
            await self.server.wait()
        await self.server.start()
