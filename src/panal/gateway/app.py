"""The whole HTTP application: the data path as bare ASGI, everything else by Starlette."""

from typing import Any

from starlette.applications import Starlette

from panal.gateway.inference import ROUTES, Inference, Receive, Scope, Send


class App:
    """Routes a request to the data path or to the endpoints."""

    def __init__(self, inference: Inference, endpoints: Starlette) -> None:
        self._inference = inference
        self._endpoints: Any = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ROUTES:
            await self._inference(scope, receive, send)
        else:
            await self._endpoints(scope, receive, send)
