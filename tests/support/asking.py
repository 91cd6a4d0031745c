"""Requests to the echo engine, and clients that leave without a word or never stop asking."""

import http.client
import json
import socket
import threading
from typing import Any

from tests.support.served import Served


def say(words: str, **echo: Any) -> dict[str, Any]:
    """A chat request for the official client; ``echo`` are knobs of the echo engine."""
    knobs: dict[str, Any] = {"extra_body": {"x_echo": echo}} if echo else {}
    return {"model": "echo", "messages": [{"role": "user", "content": words}], **knobs}


def wire(request: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The same as a body on the wire."""
    body = {name: value for name, value in request.items() if name != "extra_body"}
    return {**body, **request.get("extra_body", {}), **more}


class Reader:
    """A client that asks and, when told to, closes its connection without a word."""

    def __init__(self, served: Served, route: str, request: dict[str, Any]) -> None:
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", served.installation.http_port, timeout=30.0
        )
        path = "/v1/chat/completions" if route == "chat" else "/v1/completions"
        headers = {"authorization": f"Bearer {served.installation.key}", "content-type": "application/json"}
        self._connection.request("POST", path, json.dumps(wire(request)), headers)

    def leave(self) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class Asking:
    """Somebody who asks all the time, in a thread; ``failures`` are the answers that were not right."""

    def __init__(self, served: Served) -> None:
        self.count = 0
        self.failures: list[str] = []
        self._served = served
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        while not self._stopped.wait(0.02):
            reply = self._served.call("POST", "/v1/chat/completions", wire(say("all the time")))
            self.count += 1
            if reply.status != 200:
                self.failures.append(reply.body.decode())

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60.0)
