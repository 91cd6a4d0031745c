"""What a gateway answers while it starts and its store or bus is away: that it lives, and waits for what."""

from collections.abc import Callable

import msgspec

from panal.core.errors import PanalError
from panal.gateway.errors import body_of, headers_of, shape_of
from panal.gateway.inference import Receive, Scope, Send, send_json


class Waiting(msgspec.Struct):
    """``GET /health`` meanwhile. ``utc_s`` is the gateway's clock."""

    status: str
    utc_s: float
    message: str


class WaitingRoom:
    """An ASGI application: /health is 200, everything else 503 with the code of what is away.

    Every answer closes its connection, so that no client is left here when the gateway is there.
    """

    def __init__(self, utc_s: Callable[[], float], new_request_id: Callable[[], str]) -> None:
        self._utc_s = utc_s
        self._new_request_id = new_request_id
        self.cause = PanalError("The gateway starts.", retry_after_s=1)

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        close = [(b"connection", b"close")]
        if scope["path"] == "/health" and scope["method"] in ("GET", "HEAD"):
            said = Waiting("waiting", self._utc_s(), self.cause.message)
            await send_json(send, 200, msgspec.json.encode(said), close)
            return
        request_id = self._new_request_id()
        headers = [*headers_of(self.cause, request_id), *close]
        await send_json(send, shape_of(self.cause).status, body_of(self.cause, request_id), headers)
