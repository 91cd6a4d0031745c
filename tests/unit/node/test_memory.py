"""The engine's memory: real processes, their children, and what they leave behind."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

from panal.node.hardware.memory import SLACK_BYTES, EngineMemory, is_back

MIB = 1024 * 1024
HOLD = "import sys; held = bytearray(b'x') * (%d << 20); print('ready', flush=True); sys.stdin.read()"
PARENT = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]],"
    " stdin=subprocess.PIPE, stdout=subprocess.PIPE); child.stdout.readline();"
    " print(child.pid, flush=True); sys.stdin.read()"
)


@contextmanager
def program(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [sys.executable, "-c", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def test_a_process_holds_and_then_holds_nothing() -> None:
    memory = EngineMemory()
    assert memory.held_bytes() == 0
    with program(HOLD % 100) as (process, _):
        memory.look({process.pid})
        held = memory.held_bytes()
        assert held is not None
        assert held > 100 * MIB
        assert not is_back(held, 0)
        process.kill()
        process.wait()
        assert memory.held_bytes() == 0


def test_a_zombie_holds_nothing() -> None:
    memory = EngineMemory()
    with program(HOLD % 1) as (process, _):
        memory.look({process.pid})
        psutil.Process(process.pid).kill()
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            os.sched_yield()
        assert memory.held_bytes() == 0


def test_a_child_that_outlives_its_parent_still_counts_and_can_be_ended() -> None:
    memory = EngineMemory()
    with program(PARENT, HOLD % 100) as (parent, line):
        child = psutil.Process(int(line))
        memory.look({parent.pid})
        assert memory.alive() == sorted([parent.pid, child.pid])
        child_is_ours = parent.pid == child.ppid()
        assert child_is_ours
        child.suspend()
        parent.kill()
        parent.wait()
        held = memory.held_bytes()
        assert held is not None
        assert held > 100 * MIB
        assert memory.end_survivors() == [child.pid]
        psutil.wait_procs([child], timeout=10)
        assert memory.held_bytes() == 0


class Card:
    def __init__(self, used: int | None) -> None:
        self.used = used

    def used_bytes(self, pids: Sequence[int]) -> int | None:
        return self.used


def test_a_card_that_cannot_be_read_is_not_back() -> None:
    card = Card(3 * MIB)
    memory = EngineMemory(card)
    assert memory.held_bytes() == 3 * MIB
    card.used = None
    assert memory.held_bytes() is None
    assert not is_back(None, 10**12)


def test_back_is_measured_against_the_baseline() -> None:
    assert is_back(5 * MIB + SLACK_BYTES, 5 * MIB)
    assert not is_back(5 * MIB + SLACK_BYTES + 1, 5 * MIB)


def test_a_pid_that_never_was_is_nothing() -> None:
    memory = EngineMemory()
    memory.look({2**22 - 3})
    assert memory.alive() == []
