"""Routes beside inference: each declares who may call it, what it takes and what it gives.

The table is the single source of the router, of the permission test and of the OpenAPI document.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from panal.core.errors import BadRequest, ClientGone, NotAllowed, NotFound, PanalError, TooLarge
from panal.core.ids import IdSource
from panal.core.principals import Principal, Role
from panal.gateway.errors import body_of, headers_of, shape_of
from panal.gateway.http_protocol import CONNECTION
from panal.gateway.inference import Principals
from panal.gateway.json_names import check_names_once
from panal.gateway.refused import RefusedCalls

T = TypeVar("T")

RANK = {Role.USER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}
ADMIN_BODY_BYTES_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an endpoint. ``principal`` is None on public endpoints only."""

    principal: Principal | None
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes
    peer: str

    @property
    def caller(self) -> Principal:
        assert self.principal is not None
        return self.principal

    def read(self, kind: type[T]) -> T:
        """The JSON body as ``kind``. Raises BadRequest naming what is wrong."""
        try:
            found = msgspec.json.decode(self.body or b"{}", type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRequest(f"The request body is not right: {error}") from error
        check_names_once(self.body or b"{}")
        return found

    def whole_number(self, name: str, default: int, most: int) -> int:
        """A query parameter between 1 and ``most``."""
        text = self.query.get(name)
        if text is None:
            return default
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise BadRequest(f"'{name}' must be a whole number from 1 to {most}.", param=name)
        return int(text)


@dataclass(frozen=True, slots=True)
class Text:
    """An answer that is not JSON."""

    body: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method on one path. ``role`` None: anybody may call it, without a key."""

    method: str
    path: str
    role: Role | None
    handle: Callable[[Call], Awaitable[Any]]
    summary: str
    takes: type | None = None
    gives: type | None = None
    status: int = 200
    query: Mapping[str, str] = field(default_factory=dict)


def build(
    endpoints: Sequence[Endpoint],
    principals: Principals,
    ids: IdSource,
    refused: RefusedCalls | None = None,
) -> Starlette:
    """The Starlette application of these endpoints, with every error in OpenAI's shape."""
    routes = [
        Route(endpoint.path, _asgi_handler(endpoint, principals, ids, refused), methods=[endpoint.method])
        for endpoint in endpoints
    ]

    async def not_found(_request: Request, _error: Exception) -> Response:
        return _error_response(NotFound("There is no such route here. See /api/v1/openapi.json."), ids)

    async def wrong_method(_request: Request, error: Exception) -> Response:
        response = _error_response(BadRequest("This route does not take that method."), ids)
        response.status_code = 405
        response.headers.update(getattr(error, "headers", None) or {})
        return response

    async def own_mistake(_request: Request, _error: Exception) -> Response:
        return _error_response(PanalError("The gateway failed on this request."), ids)

    handlers = {404: not_found, 405: wrong_method, Exception: own_mistake}
    return Starlette(routes=routes, exception_handlers=handlers)


def _asgi_handler(
    endpoint: Endpoint, principals: Principals, ids: IdSource, refused: RefusedCalls | None
) -> Callable[[Request], Awaitable[Response]]:
    async def handler(request: Request) -> Response:
        peer = request.client.host if request.client else ""
        authorization = _authorization(request)
        principal: Principal | None = None
        try:
            if endpoint.role is not None:
                principal = principals.principal_of(authorization)
                _check_role(endpoint, request, principal)
            body = await _body(request)
            answer = await endpoint.handle(
                Call(principal, request.path_params, dict(request.query_params), body, peer)
            )
        except PanalError as error:
            if refused is not None:
                refused.call(
                    error,
                    target=f"{endpoint.method} {endpoint.path}",
                    peer=peer,
                    principal=principal,
                    authorization=authorization,
                )
            return _error_response(error, ids)
        if isinstance(answer, Text):
            return Response(answer.body, media_type=answer.media_type)
        return Response(
            msgspec.json.encode(answer), status_code=endpoint.status, media_type="application/json"
        )

    return handler


async def _body(request: Request) -> bytes:
    """The whole body, read no further than its limit. Raises TooLarge, ClientGone."""
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            pieces.append(piece)
            size += len(piece)
            if size > ADMIN_BODY_BYTES_MAX:
                raise TooLarge(f"The request body is larger than {ADMIN_BODY_BYTES_MAX} bytes.")
    except ClientDisconnect as error:
        raise ClientGone("The client left while it sent its request.") from error
    return b"".join(pieces)


def _authorization(request: Request) -> bytes | None:
    header = request.headers.get("authorization")
    return header.encode("latin-1") if header is not None else None


def _check_role(endpoint: Endpoint, request: Request, principal: Principal) -> None:
    connection = request.scope.get("extensions", {}).get(CONNECTION)
    if connection is not None:
        connection[0].authenticated()
    if endpoint.role is not None and RANK[principal.role] < RANK[endpoint.role]:
        raise NotAllowed(f"This needs a key with the role '{endpoint.role.value}'.")


def _error_response(error: PanalError, ids: IdSource) -> Response:
    request_id = ids.request()
    headers = {name.decode(): value.decode() for name, value in headers_of(error, request_id)}
    return Response(
        body_of(error, request_id), shape_of(error).status, headers=headers, media_type="application/json"
    )
