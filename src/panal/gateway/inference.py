"""The inference routes as bare ASGI: read, know who asks, hand to the path, end the response."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from panal.core.clock import Clock
from panal.core.errors import BadRequest, ClientGone, NotAllowed, NotAuthenticated, PanalError
from panal.core.ids import IdSource, TenantId
from panal.core.principals import Principal
from panal.core.requests import InferenceRequest, Route
from panal.dispatch.dispatcher import Dispatcher
from panal.dispatch.limiter import Limiter
from panal.gateway.client_stream import ClientStream
from panal.gateway.errors import body_of, event_of, headers_of, shape_of
from panal.gateway.http_protocol import CONNECTION, PanalHttpProtocol
from panal.gateway.refused import RefusedCalls
from panal.gateway.translate import Caller, read_request

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

ROUTES = {
    "/v1/chat/completions": Route.CHAT,
    "/v1/completions": Route.COMPLETIONS,
    "/v1/embeddings": Route.EMBEDDINGS,
}

log = logging.getLogger("panal.gateway")


class Principals(Protocol):
    """Who calls: the key directory of identity."""

    def principal_of(self, authorization: bytes | None) -> Principal:
        """Raises NotAuthenticated."""
        ...


class Inference:
    """The data path's door."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        principals: Principals,
        ids: IdSource,
        clock: Clock,
        total_s_max: float,
        limiter: Limiter | None = None,
        model_of: Callable[[TenantId, str], str] | None = None,
        refused: RefusedCalls | None = None,
        whole_models: frozenset[str] = frozenset(),
    ) -> None:
        """``model_of`` and ``whole_models``: see ``read_request``."""
        self._dispatcher = dispatcher
        self._principals = principals
        self._ids = ids
        self._clock = clock
        self._total_s_max = total_s_max
        self._limiter = limiter
        self._model_of = model_of
        self._refused = refused
        self._whole_models = whole_models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http, cycle, headers = scope["extensions"][CONNECTION]
        caller: Caller | None = None
        request: InferenceRequest | None = None
        client: ClientStream | None = None
        try:
            if scope["method"] != "POST":
                await self._wrong_method(send)
                return
            caller = self._caller(headers)
            if http.stranger:
                http.authenticated()
            body = arrived_body(http, cycle) or await read_body(receive)
            route = ROUTES[scope["path"]]
            request = read_request(
                route,
                body,
                caller,
                self._ids,
                self._clock,
                self._total_s_max,
                self._model_of,
                self._whole_models,
            )
            client = ClientStream(http, cycle, request.request_id)
            client.trailers = b"trailers" in headers.get(b"te", b"")
            if self._limiter is not None and self._limiter.limits_of(request.principal):
                client.head_lines = partial(self._limiter.headers_of, request.principal)
            last = await self._dispatcher.answer(request, client)
            if request.stream:
                await client.finish(last)
            else:
                await client.whole(last)
        except ClientGone:
            http.hang_up()
        except PanalError as error:
            if self._refused is not None and isinstance(error, NotAuthenticated | NotAllowed):
                self._refused.call(
                    error,
                    target=f"POST {scope['path']}",
                    peer=scope["client"][0] if scope["client"] else "",
                    principal=caller.principal if caller is not None else None,
                    authorization=headers.get(b"authorization"),
                )
            await self._tell(error, request, client, send)
        except asyncio.CancelledError:
            await self._tell(PanalError("The gateway is stopping. Try again."), request, client, send)
            raise

    async def _tell(
        self, error: PanalError, request: InferenceRequest | None, client: ClientStream | None, send: Send
    ) -> None:
        """An error as a response of its own, or as the last event of one that has begun."""
        request_id = request.request_id if request is not None else self._ids.request()
        if client is not None and client.started:
            await client.finish(event_of(error, request_id))
        else:
            headers = headers_of(error, request_id)
            if client is not None and client.head_lines is not None:
                headers += [(name.encode(), value.encode()) for name, value in client.head_lines()]
            await send_json(send, shape_of(error).status, body_of(error, request_id), headers)

    async def _wrong_method(self, send: Send) -> None:
        request_id = self._ids.request()
        error = BadRequest("Use POST on this route.")
        await send_json(
            send, 405, body_of(error, request_id), [(b"allow", b"POST"), *headers_of(error, request_id)]
        )

    def _caller(self, found: dict[bytes, bytes]) -> Caller:
        principal = self._principals.principal_of(found.get(b"authorization"))
        data_class = found.get(b"x-panal-data-class")
        deadline = found.get(b"x-panal-deadline-s")
        return Caller(
            principal=principal,
            data_class=data_class.decode("latin-1") if data_class is not None else None,
            deadline_s=_seconds(deadline) if deadline is not None else None,
            traceparent=found.get(b"traceparent", b"")[:64].decode("latin-1"),
            show_nodes=b"x-panal-show-nodes" in found,
        )


def arrived_body(http: PanalHttpProtocol, cycle: RequestResponseCycle) -> bytes:
    """The whole body where it came together with the headers, as a small one does; else nothing."""
    if cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue or http.flow.read_paused:
        return b""
    body, cycle.body = bytes(cycle.body), bytearray()
    return body


async def read_body(receive: Receive) -> bytes:
    """The whole body; its size is bounded by the connection. Raises ClientGone."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("The client left while it sent its request.")
        pieces.append(message["body"])
        if not message["more_body"]:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def send_json(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """A complete JSON response."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _seconds(text: bytes) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise BadRequest("'X-Panal-Deadline-S' must be a number of seconds above 0.")
    return seconds
