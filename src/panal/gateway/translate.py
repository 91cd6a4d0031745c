"""From a client's bytes to a request that the path understands. The body itself is not changed."""

from collections.abc import Callable
from typing import Any, cast

import msgspec

from panal.core.clock import Clock
from panal.core.errors import BadRequest
from panal.core.ids import IdSource, TenantId
from panal.core.names import name_fault, name_key
from panal.core.nodes import DataClass
from panal.core.principals import Principal
from panal.core.requests import InferenceRequest, Route
from panal.gateway.json_names import check_deciding_names, check_name_once
from panal.policy.access import effective_data_class
from panal.policy.body_rules import check_body, check_sensitive_body, may_call_tools, resumable
from panal.telemetry.redaction import redacted

BYTES_PER_TOKEN = 4
"""A first guess at the prompt's tokens, for routing; what is billed is counted by the engine."""

RESPONSE_ID_PREFIX = {Route.CHAT: "chatcmpl-", Route.COMPLETIONS: "cmpl-", Route.EMBEDDINGS: "embd-"}
PROMPT_FIELD = {Route.CHAT: "messages", Route.COMPLETIONS: "prompt", Route.EMBEDDINGS: "input"}
DEADLINE_FIELD = "panal_deadline_s"
"""For clients whose SDK can send a field more easily than a header; no engine sees it."""
_decoder = msgspec.json.Decoder()
_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Caller(msgspec.Struct, frozen=True, gc=False):
    """What the headers say."""

    principal: Principal
    data_class: str | None = None
    deadline_s: float | None = None
    traceparent: str = ""
    show_nodes: bool = False


def read_request(
    route: Route,
    body: bytes,
    caller: Caller,
    ids: IdSource,
    clock: Clock,
    total_s_max: float,
    model_of: Callable[[TenantId, str], str] | None = None,
    whole_models: frozenset[str] = frozenset(),
) -> InferenceRequest:
    """The request in ``body``. Raises BadRequest naming the field that is wrong.

    ``model_of`` gives the own name of the model that a name stands for, empty when there is none; without
    it a model has its own name only. ``whole_models``: keys of the names whose tool calls come in one piece.
    """
    fields = _decoded(body)
    check_body(fields)
    check_deciding_names(body)
    _check_types(route, fields)
    data_class = effective_data_class(caller.principal, caller.data_class)
    if data_class >= DataClass.CONFIDENTIAL:
        check_sensitive_body(fields)
    suffix = ids.suffix()
    total_s = min(total_s_max, caller.deadline_s or total_s_max)
    if DEADLINE_FIELD in fields:
        total_s = min(total_s, _deadline_s(fields[DEADLINE_FIELD]) or total_s)
        body = _without_deadline(body)
    options = fields.get("stream_options") or {}
    principal = caller.principal
    serves = fields["model"] if model_of is None else model_of(principal.tenant_id, fields["model"])
    return InferenceRequest(
        request_id=ids.request_with(suffix),
        response_id=RESPONSE_ID_PREFIX[route] + suffix,
        created_utc_s=int(clock.utc_seconds()),
        route=route,
        model=fields["model"],
        stream=bool(fields.get("stream")) and route is not Route.EMBEDDINGS,
        include_usage=bool(options.get("include_usage")),
        body=body,
        principal=principal,
        data_class=data_class,
        residency=principal.residency,
        deadline_monotonic_s=clock.monotonic_seconds() + total_s,
        total_s_max=total_s,
        traceparent=caller.traceparent,
        prompt_tokens_estimate=len(body) // BYTES_PER_TOKEN + 1,
        max_tokens=fields.get("max_completion_tokens") or fields.get("max_tokens"),
        resumable=resumable(route, fields),
        tools=may_call_tools(fields),
        tools_whole=_tools_whole(fields, principal, serves, whole_models),
        show_nodes=caller.show_nodes,
        serves="" if serves == fields["model"] else serves,
    )


def _tools_whole(
    fields: dict[str, Any], principal: Principal, serves: str, whole_models: frozenset[str]
) -> bool:
    """The request's own word, else that of the key or of the model, by either of its names."""
    said = fields.get("tool_buffering")
    if said is not None:
        return bool(said == "whole")
    if not whole_models:
        return principal.tools_whole
    return principal.tools_whole or not whole_models.isdisjoint((name_key(fields["model"]), name_key(serves)))


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        fields = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"The request body is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadRequest("The request body must be a JSON object.")
    return fields


def _deadline_s(value: object) -> float | None:
    """The field's value in seconds; null is as if it were not there."""
    if value is None:
        return None
    right = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    if not right:
        raise BadRequest(f"'{DEADLINE_FIELD}' must be a number of seconds above 0.", param=DEADLINE_FIELD)
    return cast(float, value)


def _without_deadline(body: bytes) -> bytes:
    """The body without the field; every other value stays as it was written, byte for byte."""
    check_name_once(body, DEADLINE_FIELD)
    values = _raw_decoder.decode(body)
    del values[DEADLINE_FIELD]
    return msgspec.json.encode(values)


def _check_types(route: Route, fields: dict[str, Any]) -> None:
    model = fields.get("model")
    if not isinstance(model, str) or not model.strip(" "):
        raise BadRequest("'model' must be the name of a model, see GET /v1/models.", param="model")
    if fault := name_fault(model):
        raise BadRequest(f"'model' {fault}.", param="model")
    if redacted(model) != model:  # it would stand in logs and in the ledger as the model's name
        raise BadRequest("'model' holds an API key instead of a model's name.", param="model")
    prompt = PROMPT_FIELD[route]
    if not fields.get(prompt):
        raise BadRequest(f"'{prompt}' is missing or empty.", param=prompt)
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise BadRequest("'stream' must be true or false.", param="stream")
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest("'stream_options' must be an object.", param="stream_options")
    for name in ("max_tokens", "max_completion_tokens"):
        value = fields.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise BadRequest(f"'{name}' must be a whole number above 0.", param=name)
    if route is Route.EMBEDDINGS and fields.get("encoding_format") not in (None, "float", "base64"):
        raise BadRequest("'encoding_format' must be 'float' or 'base64'.", param="encoding_format")
