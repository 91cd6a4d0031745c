"""The OpenAPI document of the endpoints, made from their table."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from panal import __version__
from panal.gateway.endpoints import Endpoint

_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1: paths, schemas of bodies, and which role each call needs."""
    kinds = [kind for endpoint in endpoints for kind in (endpoint.takes, endpoint.gives) if kind is not None]
    unique = list(dict.fromkeys(kinds))
    schemas, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(unique, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "panal management API", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, schema_of: dict[type, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": f"{endpoint.method.lower()}{re.sub(r'[^a-zA-Z0-9]+', '_', endpoint.path)}",
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PARAMETER.findall(endpoint.path)
        ]
        + [
            {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
            for name, text in endpoint.query.items()
        ],
        "responses": {
            str(endpoint.status): {"description": "Done", **_content(endpoint.gives, schema_of)},
            "4XX": {"description": "The caller must change something; the body says what"},
        },
    }
    if endpoint.takes is not None:
        operation["requestBody"] = {"required": True, **_content(endpoint.takes, schema_of)}
    if endpoint.role is not None:
        operation["security"] = [{"key": []}]
        operation["x-role"] = endpoint.role.value
    return operation


def _content(kind: type | None, schema_of: dict[type, Any]) -> dict[str, Any]:
    if kind is None:
        return {}
    return {"content": {"application/json": {"schema": schema_of[kind]}}}
