"""The gateway processes of one installation, and connections of which one knows who has them."""

import contextlib
import http.client
import json
import re
import threading
from dataclasses import dataclass, field
from typing import Any

import psutil

from panal.core.errors import BusError
from tests.support.asking import say, wire
from tests.support.installation import until
from tests.support.served import CLIENT_S_MAX, Reply, Served

CONNECTIONS_TRIED = 64


@dataclass(frozen=True)
class GatewayProcess:
    number: int
    pid: int
    leads: bool

    def kill(self) -> None:
        psutil.Process(self.pid).kill()


def processes(served: Served) -> list[GatewayProcess]:
    """Those that live, by their numbers."""
    found = served.admin().get("/api/v1/processes")["processes"]
    return [GatewayProcess(each["number"], each["pid"], each["leads"]) for each in found if each["lives"]]


def until_all_run(served: Served, count: int, other_than: int = 0) -> list[GatewayProcess]:
    """Until so many live, one of them leads, and none is ``other_than``."""

    def found() -> list[GatewayProcess] | None:
        with contextlib.suppress(BusError):
            living = processes(served)
            settled = len(living) == count and sum(each.leads for each in living) == 1
            return living if settled and other_than not in [each.pid for each in living] else None
        return None

    living: list[GatewayProcess] = until(found, 30.0, f"{count} processes run and one leads")
    return living


class Line:
    """A connection that is kept, and the process that has it."""

    def __init__(self, served: Served) -> None:
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", served.installation.http_port, timeout=CLIENT_S_MAX
        )
        self._key = served.installation.key
        self._admin_key = served.installation.admin_key
        self._connection.connect()
        self.port = int(self._connection.sock.getsockname()[1])

    def call(self, method: str, path: str, body: Any = None, *, key: str = "", admin: bool = False) -> Reply:
        """Raises OSError or http.client.HTTPException when the connection is cut."""
        secret = self._admin_key if admin else key or self._key
        headers = {"content-type": "application/json", "authorization": f"Bearer {secret}"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        return Reply(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())

    def ask(self, words: str = "hello there", *, key: str = "", **echo: Any) -> Reply:
        return self.call("POST", "/v1/chat/completions", wire(say(words, **echo)), key=key)

    def close(self) -> None:
        self._connection.close()


def holder_of(line: Line, among: list[GatewayProcess]) -> int:
    """The process that has this connection; it was heard on it."""
    for each in among:
        if any(
            found.raddr and found.raddr.port == line.port
            for found in psutil.Process(each.pid).net_connections("tcp")
        ):
            return each.pid
    raise AssertionError("no process has the connection")


def line_to(served: Served, process: GatewayProcess) -> Line:
    """A connection to this one of the processes."""
    among = processes(served)
    for _ in range(CONNECTIONS_TRIED):
        line = Line(served)
        assert line.call("GET", "/health").status == 200
        if holder_of(line, among) == process.pid:
            return line
        line.close()
    raise AssertionError(f"none of {CONNECTIONS_TRIED} connections came to process {process.number}")


@dataclass
class Asked:
    """What one client that asks all the time was told."""

    right: int = 0
    tokens: int = 0
    refused: list[int] = field(default_factory=list)
    cut: int = 0


class Clients:
    """Clients in threads, each on connections of its own, which ask until told to stop."""

    def __init__(self, served: Served, count: int) -> None:
        self._served = served
        self._stopped = threading.Event()
        self.told = [Asked() for _ in range(count)]
        self._threads = [threading.Thread(target=self._ask, args=(each,)) for each in self.told]
        for thread in self._threads:
            thread.start()

    @property
    def right(self) -> int:
        return sum(each.right for each in self.told)

    def _ask(self, told: Asked) -> None:
        while not self._stopped.is_set():
            line = None
            try:
                line = Line(self._served)
                while not self._stopped.is_set():
                    reply = line.ask("all the time")
                    if reply.status == 200:
                        told.right += 1
                        told.tokens += reply.json["usage"]["total_tokens"]
                    else:
                        told.refused.append(reply.status)
            except (OSError, http.client.HTTPException):
                told.cut += 1
            finally:
                if line is not None:
                    line.close()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(CLIENT_S_MAX)


def metric(served: Served, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels, as one scrape shows them."""
    total = 0.0
    for found in re.finditer(rf"^{name}(?:{{([^}}]*)}})? (\S+)$", served.metrics(), re.MULTILINE):
        if all(f'{label}="{value}"' in (found[1] or "") for label, value in labels.items()):
            total += float(found[2])
    return total
