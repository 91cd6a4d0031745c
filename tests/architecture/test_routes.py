"""Every route declares who may call it, and nobody else gets in."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import NotAuthenticated
from panal.core.ids import DEFAULT_PROJECT, DEFAULT_TENANT, ApiKeyId, IdSource, PrincipalId
from panal.core.principals import Principal, Role
from panal.gateway.admin_routes import admin_endpoints
from panal.gateway.app import App
from panal.gateway.endpoints import RANK, Endpoint, build
from panal.gateway.http_protocol import CONNECTION
from panal.gateway.inference import ROUTES, Inference
from panal.gateway.process_routes import metrics_endpoints
from panal.gateway.public_routes import client_endpoints, join_endpoints
from panal.protocol.joining import Authority

PUBLIC = {
    "GET /health": "probes have no key",
    "GET /ready": "probes have no key",
    "GET /join/v1/authority": "a certificate; a joining machine checks its pin",
    "POST /join/v1/nodes": "the join token is the right",
    "POST /join/v1/credentials": "the node's signature is the right",
}

CLOCK = ManualClock()
IDS = IdSource(CLOCK, lambda count: b"\x07" * count)


class Anything(SimpleNamespace):
    """Stands in for collaborators that no refused call may reach."""

    def __getattr__(self, name: str) -> Any:
        return Anything()


class Keys:
    """A key is the name of its role."""

    def principal_of(self, authorization: bytes | None) -> Principal:
        text = (authorization or b"").decode().removeprefix("Bearer ")
        if text not in [role.value for role in Role]:
            raise NotAuthenticated
        return Principal(
            PrincipalId("prn_test"), DEFAULT_TENANT, DEFAULT_PROJECT, Role(text), ApiKeyId("key_test")
        )


def endpoints() -> list[Endpoint]:
    anything: Any = Anything()
    return [
        *client_endpoints(anything),
        *metrics_endpoints(anything),
        *join_endpoints(anything, lambda: Authority("PEM")),
        *admin_endpoints(anything, anything, anything),
    ]


def name_of(endpoint: Endpoint) -> str:
    return f"{endpoint.method} {endpoint.path}"


TABLE = {name_of(endpoint): endpoint for endpoint in endpoints()}
GUARDED = [name for name, endpoint in TABLE.items() if endpoint.role is not None]


def application() -> App:
    anything: Any = Anything()
    inference = Inference(anything, Keys(), IDS, CLOCK, 60.0)
    return App(inference, build(endpoints(), Keys(), IDS), IDS)


async def call(method: str, path: str, key: str | None = None) -> tuple[int, dict[bytes, bytes], Any]:
    """Status, headers and JSON of an answer of the whole application."""
    path = (
        path.replace("{name:path}", "x")
        .replace("{name}", "x")
        .replace("{id}", "x")
        .replace("{request}", "x")
        .replace("{subject}", "x")
    )
    headers = [(b"host", b"localhost")]
    if key is not None:
        headers.append((b"authorization", f"Bearer {key}".encode()))
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        "extensions": {
            CONNECTION: (Anything(stranger=False, authenticated=lambda: None), Anything(), dict(headers))
        },
    }  # fmt: skip
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await application()(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(body)


def test_no_method_of_a_path_is_there_twice() -> None:
    assert len(TABLE) == len(endpoints())


def test_only_the_public_list_is_open_to_everybody() -> None:
    assert {name for name, endpoint in TABLE.items() if endpoint.role is None} == set(PUBLIC)


def test_every_management_route_needs_a_role() -> None:
    for name, endpoint in TABLE.items():
        if endpoint.path.startswith("/api/"):
            assert endpoint.role is not None, name


@pytest.mark.parametrize("name", GUARDED)
async def test_nobody_gets_in_without_a_key(name: str) -> None:
    endpoint = TABLE[name]
    for key in (None, "", "nobody", "sk-panal-"):
        status, headers, body = await call(endpoint.method, endpoint.path, key)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert headers[b"www-authenticate"] == b"Bearer"


@pytest.mark.parametrize("name", GUARDED)
async def test_a_lower_role_is_not_enough(name: str) -> None:
    endpoint = TABLE[name]
    assert endpoint.role is not None
    for role in Role:
        if RANK[role] < RANK[endpoint.role]:
            status, _headers, body = await call(endpoint.method, endpoint.path, role.value)
            assert (status, body["error"]["code"]) == (403, "not_allowed")


@pytest.mark.parametrize("path", ROUTES)
async def test_inference_needs_a_key(path: str) -> None:
    for key in (None, "", "nobody"):
        status, headers, body = await call("POST", path, key)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert headers[b"www-authenticate"] == b"Bearer"


async def test_a_path_that_is_not_there_tells_nothing_more() -> None:
    status, _headers, body = await call("GET", "/api/v1/nothing")
    assert (status, body["error"]["code"]) == (404, "not_found")


async def test_a_wrong_method_is_refused_in_the_usual_shape() -> None:
    status, headers, body = await call("DELETE", "/health")
    assert (status, body["error"]["code"]) == (405, "invalid_request")
    assert b"allow" in headers


@pytest.mark.parametrize("name", GUARDED)
async def test_the_document_of_the_api_says_which_role_is_needed(name: str) -> None:
    endpoint = TABLE[name]
    if not endpoint.path.startswith("/api/"):
        return
    status, _headers, document = await call("GET", "/api/v1/openapi.json", "user")
    assert status == 200
    path = endpoint.path.replace(":path}", "}")
    operation = document["paths"][path][endpoint.method.lower()]
    assert endpoint.role is not None and operation["x-role"] == endpoint.role.value
    assert operation["summary"]
