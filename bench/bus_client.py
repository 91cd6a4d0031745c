"""CPU per message of panal's bus client beside nats-py, in one run, on this machine.

    python bench/bus_client.py [--messages 100000] [--rounds 2]

One nats-server (operator mode), one publisher (this process, panal's client as a node), and for each row a
receiver in a process of its own that counts messages of 400 bytes. What is printed is the receiver's CPU
time from its first message to its last, divided by the messages. Rows are interleaved over the rounds.
"""

import argparse
import asyncio
import base64
import json
import os
import random
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nats
import uvloop

from panal.bus.authority_file import authority_path, create_or_load_authority
from panal.bus.connector import Servers, client_tls
from panal.bus.credentials import Login
from panal.bus.nats_client import NatsClient
from panal.bus.nats_config import NatsServerSettings, TlsFiles
from panal.bus.nats_server import NatsServer
from panal.bus.nkeys import KeyKind, SigningKey
from panal.core.clock import SystemClock
from panal.core.ids import GatewayId, NodeKey
from panal.identity.certificates import create_or_load_ca, server_certificate

PAYLOAD = b"x" * 400
END = b"end"
GATEWAY = GatewayId("gw_bench")
PACES = {"flat out": 0, "5,000/s in bursts of 5": 5, "1,000/s singly": 1}


class Silent:
    def on_connection(self, connected: bool) -> None: ...

    def on_refused(self, reason: str) -> None:
        print("refused:", reason, file=sys.stderr)

    def on_violation(self, text: str) -> None:
        print(text, file=sys.stderr)


class Count:
    """The receiver's count and its CPU time between the first message and the last."""

    def __init__(self) -> None:
        self.messages = 0
        self.cpu_s = 0.0
        self.ended = asyncio.Event()

    def take(self, payload: bytes) -> None:
        if payload == END:
            self.cpu_s = time.process_time() - self.cpu_s
            self.ended.set()
            return
        if self.messages == 0:
            self.cpu_s = time.process_time()
        self.messages += 1


async def receive(plan: dict[str, Any]) -> None:
    count = Count()
    key = SigningKey.from_seed(plan["seed"])
    subject = f"panal.up.*.frames.{GATEWAY}"
    if plan["client"] == "panal":
        login = Login(lambda: plan["credential"], key.sign)
        client = NatsClient(
            Servers.at([plan["url"]], plan["ca"]), login, name="receiver", randomness=random.random
        )
        client.subscribe(subject, lambda _subject, payload: count.take(payload))
        await client.start(Silent(), 10)
        await client.flush(10)
    else:
        other = await nats.connect(
            plan["url"],
            tls=client_tls(plan["ca"]) if plan["ca"] else None,
            tls_handshake_first=bool(plan["ca"]),
            user_jwt_cb=lambda: bytearray(plan["credential"].encode()),
            signature_cb=lambda nonce: base64.urlsafe_b64encode(key.sign(nonce.encode())).rstrip(b"="),
        )

        async def take(message: Any) -> None:
            count.take(message.data)

        await other.subscribe(subject, cb=take, pending_msgs_limit=10**9, pending_bytes_limit=10**12)
        await other.flush()
    print("ready", flush=True)
    await count.ended.wait()
    print(
        json.dumps({"messages": count.messages, "us": count.cpu_s * 1e6 / max(1, count.messages)}), flush=True
    )


async def publish(client: NatsClient, subject: bytes, messages: int, burst: int) -> float:
    """Returns the publisher's own CPU in microseconds a message."""
    cpu_s = time.process_time()
    start_s = time.perf_counter()
    sent = 0
    while sent < messages:
        for _ in range(burst or 50):
            client.publish(subject, PAYLOAD)
        sent += burst or 50
        if burst:
            due_s = start_s + sent / burst / 1000
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        else:
            await client.flush(10)
    cpu_s = time.process_time() - cpu_s
    client.publish(subject, END)
    await client.flush(10)
    return cpu_s * 1e6 / sent


async def run(messages: int, rounds: int) -> None:
    print(f"{'':8}{'pace':26}{'client':10}{'receiver us/message':>22}{'publisher us/message':>24}")
    for encrypted in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            await _measure(Path(folder), encrypted, messages, rounds)


async def _measure(home: Path, encrypted: bool, messages: int, rounds: int) -> None:
    clock = SystemClock()
    ca = create_or_load_ca(home, clock)
    files, _ = server_certificate(home, "bus", ca, ["127.0.0.1"], clock)
    authority = create_or_load_authority(authority_path(home), clock, os.urandom)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tls = TlsFiles(files.certificate, files.key, files.ca) if encrypted else None
    server = NatsServer(NatsServerSettings(home=home, port=port, tls=tls), authority)
    await server.start()
    ca_pem = ca.pem if encrypted else ""
    key = SigningKey.create(KeyKind.USER, os.urandom)
    login = Login(lambda: authority.node_credential(NodeKey(key.public), 3600), key.sign)
    client = NatsClient(Servers.at([server.url], ca_pem), login, name="publisher", randomness=random.random)
    await client.start(Silent(), 10)
    subject = f"panal.up.{key.public}.frames.{GATEWAY}".encode()
    results: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for pace, burst in PACES.items():
            for name in ("panal", "nats-py"):
                gateway_key = SigningKey.create(KeyKind.USER, os.urandom)
                plan = {
                    "client": name,
                    "url": server.url,
                    "ca": ca_pem,
                    "seed": gateway_key.seed(),
                    "credential": authority.gateway_credential(gateway_key.public, GATEWAY, 3600),
                }
                child = await asyncio.create_subprocess_exec(
                    sys.executable,
                    __file__,
                    "--receive",
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                )
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write(json.dumps(plan).encode())
                child.stdin.close()
                assert await child.stdout.readline() == b"ready\n"
                number = messages if not burst else messages * burst // 20
                sender_us = await publish(client, subject, number, burst)
                got = json.loads(await child.stdout.readline())
                assert got["messages"] >= number, got
                await child.wait()
                results.setdefault((pace, name), []).append((got["us"], sender_us))
    for (pace, name), values in results.items():
        receiver = ", ".join(f"{value[0]:.2f}" for value in values)
        sender = ", ".join(f"{value[1]:.2f}" for value in values)
        print(f"{'TLS' if encrypted else 'plain':8}{pace:26}{name:10}{receiver:>22}{sender:>24}", flush=True)
    await client.close()
    await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        uvloop.run(receive(json.loads(sys.stdin.read())))
    else:
        uvloop.run(run(arguments.messages, arguments.rounds))


if __name__ == "__main__":
    main()
