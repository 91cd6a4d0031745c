"""Hosts of our own: network namespaces on one bridge, made and removed by the test."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


def need_hosts() -> None:
    """Skip with the reason where namespaces cannot be made."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")


@dataclass(frozen=True)
class Host:
    """A namespace with one address."""

    name: str
    address: str
    link: str

    @property
    def prefix(self) -> list[str]:
        """What goes before a command so that it runs on this host."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Pull the cable."""
        _ip("link", "set", self.link, "down")

    def restore(self) -> None:
        _ip("link", "set", self.link, "up")

    def listening(self) -> list[str]:
        """Local addresses of listening TCP sockets."""
        command = [*self.prefix, "ss", "-H", "-l", "-t", "-n"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return [line.split()[3] for line in lines]


@contextlib.contextmanager
def hosts(count: int) -> Iterator[tuple[str, list[Host]]]:
    """Our own address on the bridge, and ``count`` hosts that reach each other and us."""
    need_hosts()
    number = os.getpid() % 200 + 20
    bridge, net = f"pnb{os.getpid() % 100000}", f"10.{number}.77"
    made: list[Host] = []
    _ip("link", "add", bridge, "type", "bridge")
    try:
        _ip("addr", "add", f"{net}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        made += [_host(f"{bridge}h{place}", f"{net}.{place + 1}", bridge) for place in range(count)]
        yield f"{net}.254", made
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)
            subprocess.run(["ip", "link", "del", host.link], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def _host(name: str, address: str, bridge: str) -> Host:
    outside, inside = f"{name}o"[-15:], f"{name}i"[-15:]
    _ip("netns", "add", name)
    _ip("link", "add", outside, "type", "veth", "peer", "name", inside)
    _ip("link", "set", outside, "master", bridge, "up")
    _ip("link", "set", inside, "netns", name)
    inner = ["netns", "exec", name, "ip"]
    _ip(*inner, "addr", "add", f"{address}/24", "dev", inside)
    _ip(*inner, "link", "set", inside, "up")
    _ip(*inner, "link", "set", "lo", "up")
    return Host(name, address, outside)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
