"""``panal chat``: a streamed answer in the terminal, with the node that speaks."""

import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from panal.cli.api_client import Api, ApiRefused, read_answer
from panal.core.names import name_key

TIMEOUT_S = 120.0
LINE_BYTES_MAX = 1024 * 1024


@dataclass
class Told:
    """What came of a chat."""

    text: str = ""
    nodes: list[str] = field(default_factory=list)
    finish: str = ""
    usage: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Listener:
    """Called as the answer comes: each piece of text, and each node that takes the word."""

    on_text: Callable[[str], None]
    on_node: Callable[[str, int], None]


def chat(api: Api, body: dict[str, Any], listener: Listener) -> Told:
    """Stream one answer. Raises ApiRefused with what the gateway says, BusError if it is not there."""
    connection = api.connect(TIMEOUT_S)
    try:
        headers = api.headers() | {"x-panal-show-nodes": "1"}
        content = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}})
        connection.request("POST", "/v1/chat/completions", content, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            read_answer(answer.status, answer.read())
        told = Told()
        for kind, value in _events(answer):
            _take(told, kind, value, listener)
        if not told.finish:
            raise ApiRefused("The answer ended without an end: the connection broke.")
        return told
    except (OSError, http.client.HTTPException) as error:
        raise api.unreachable(error) from error
    finally:
        connection.close()


def first_model(api: Api) -> str:
    """A name that this key may use, of a model that is served now. Raises ApiRefused when there is none."""
    allowed = [str(model["id"]) for model in api.get("/v1/models")["data"]]
    served = served_models(api)
    if not served or not allowed:
        raise ApiRefused(
            "No model that this key may use is served at the moment. 'panal status' shows what is."
        )
    keys = {name_key(name) for name in allowed}
    # An operator sees models by their own names, and may have a right to an alias only.
    return next((name for name in served if name_key(name) in keys), allowed[0])


def served_models(api: Api) -> list[str]:
    """Models with a working replica, by name."""
    fleet = api.get("/api/v1/fleet")
    return sorted(
        {
            replica["model"]
            for node in fleet["nodes"]
            if node["liveness"] == "live"
            for replica in node["replicas"]
            if replica["healthy"]
        }
    )


def _events(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    """Comments and data of the stream, line by line: our gateway writes one line an event."""
    while line := answer.readline(LINE_BYTES_MAX):
        text = line.decode().rstrip("\n")
        if text.startswith(": node "):
            yield "node", text.split()
        elif text.startswith("data: ") and text != "data: [DONE]":
            yield "data", json.loads(text[6:])


def _take(told: Told, kind: str, value: Any, listener: Listener) -> None:
    if kind == "node":
        told.nodes.append(value[2])
        listener.on_node(value[2], int(value[4]))
        return
    if "error" in value:
        raise ApiRefused(value["error"]["message"])
    told.usage = value.get("usage") or told.usage
    for choice in value.get("choices", []):
        text = choice.get("delta", {}).get("content") or ""
        told.text += text
        told.finish = choice.get("finish_reason") or told.finish
        if text:
            listener.on_text(text)
