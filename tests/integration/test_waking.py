"""The magic packet on a real network: an instruction to one host, the exact bytes at another."""

import subprocess
import sys

from panal.policy.waking import magic_packet
from tests.support.hosts import hosts

MAC = "3c:52:82:0a:0b:0c"
SLEEPER = """
import socket
asleep = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asleep.bind(("", 9))
asleep.settimeout(30)
print("listening", flush=True)
print(asleep.recv(2048).hex(), flush=True)
"""
HELPER = f"""
import asyncio
from panal.core.clock import SystemClock
from panal.node.waking import Waker
asyncio.run(Waker(SystemClock()).wake(["{MAC}"]))
"""


def test_a_neighbour_gets_exactly_the_packet() -> None:
    with hosts(2) as (_own, (helper, sleeper)):
        asleep = subprocess.Popen(
            [*sleeper.prefix, sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True
        )
        try:
            assert asleep.stdout is not None
            assert asleep.stdout.readline() == "listening\n"
            subprocess.run([*helper.prefix, sys.executable, "-c", HELPER], check=True, timeout=60)
            assert asleep.stdout.readline().strip() == magic_packet(MAC).hex()
        finally:
            asleep.kill()
            asleep.communicate(timeout=20)
