"""Routes beside inference: each declares who may call it, what it takes and what it gives.

The table is the single source of the router, of the permission test and of the OpenAPI document.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from panal.core.errors import BadRequest, NotAllowed, NotFound, PanalError
from panal.core.ids import IdSource
from panal.core.principals import Principal, Role
from panal.gateway.errors import body_of, headers_of, shape_of
from panal.gateway.inference import Principals

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
            return msgspec.json.decode(self.body or b"{}", type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRequest(f"The request body is not right: {error}") from error

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


def build(endpoints: Sequence[Endpoint], principals: Principals, ids: IdSource) -> Starlette:
    """The Starlette application of these endpoints, with every error in OpenAI's shape."""
    routes = [
        Route(endpoint.path, _asgi_handler(endpoint, principals, ids), methods=[endpoint.method])
        for endpoint in endpoints
    ]

    async def not_found(_request: Request, _error: Exception) -> Response:
        return _error_response(NotFound("There is no such route here. See /api/v1/openapi.json."), ids)

    async def wrong_method(_request: Request, error: Exception) -> Response:
        response = _error_response(BadRequest("This route does not take that method."), ids)
        response.status_code = 405
        response.headers.update(getattr(error, "headers", None) or {})
        return response

    return Starlette(routes=routes, exception_handlers={404: not_found, 405: wrong_method})


def _asgi_handler(
    endpoint: Endpoint, principals: Principals, ids: IdSource
) -> Callable[[Request], Awaitable[Response]]:
    async def handler(request: Request) -> Response:
        try:
            principal = _authorised(endpoint, request, principals)
            body = await request.body()
            if len(body) > ADMIN_BODY_BYTES_MAX:
                raise BadRequest(f"The request body is larger than {ADMIN_BODY_BYTES_MAX} bytes.")
            peer = request.client.host if request.client else ""
            answer = await endpoint.handle(
                Call(principal, request.path_params, dict(request.query_params), body, peer)
            )
        except PanalError as error:
            return _error_response(error, ids)
        if isinstance(answer, Text):
            return Response(answer.body, media_type=answer.media_type)
        return Response(
            msgspec.json.encode(answer), status_code=endpoint.status, media_type="application/json"
        )

    return handler


def _authorised(endpoint: Endpoint, request: Request, principals: Principals) -> Principal | None:
    if endpoint.role is None:
        return None
    header = request.headers.get("authorization")
    principal = principals.principal_of(header.encode("latin-1") if header is not None else None)
    if RANK[principal.role] < RANK[endpoint.role]:
        raise NotAllowed(f"This needs a key with the role '{endpoint.role.value}'.")
    return principal


def _error_response(error: PanalError, ids: IdSource) -> Response:
    request_id = ids.request()
    headers = {name.decode(): value.decode() for name, value in headers_of(error, request_id)}
    return Response(
        body_of(error, request_id), shape_of(error).status, headers=headers, media_type="application/json"
    )
