"""The whole HTTP application: the data path as bare ASGI, everything else by Starlette."""

import logging
from typing import Any

from starlette.applications import Starlette

from panal.core.errors import PanalError
from panal.core.ids import IdSource
from panal.gateway.errors import body_of, headers_of, shape_of
from panal.gateway.http_protocol import CONNECTION
from panal.gateway.inference import ROUTES, Inference, Receive, Scope, Send, send_json
from panal.telemetry.logs import fields

log = logging.getLogger("panal.gateway")


class App:
    """Routes a request to the data path or to the endpoints."""

    def __init__(self, inference: Inference, endpoints: Starlette, ids: IdSource) -> None:
        self._inference = inference
        self._endpoints: Any = endpoints
        self._ids = ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["path"] in ROUTES:
                await self._inference(scope, receive, send)
            else:
                await self._endpoints(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request: reported, never passed over
            await self._own_mistake(error, scope, send)

    async def _own_mistake(self, error: Exception, scope: Scope, send: Send) -> None:
        """Tell the log all and the client that it was us; an answer that has begun just ends."""
        request_id = self._ids.request()
        log.error(
            "a request failed", exc_info=error, extra=fields(action="request_failed", request_id=request_id)
        )
        http, cycle = scope["extensions"][CONNECTION]
        if cycle.response_started:
            if not cycle.response_complete:
                http.transport.close()
            return
        told = PanalError("The gateway failed on this request. The log has more under its id.")
        await send_json(send, shape_of(told).status, body_of(told, request_id), headers_of(told, request_id))
