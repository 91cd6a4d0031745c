"""Whether tool calls come in one piece: the request says it, else its key or its model."""

import json
import os
from dataclasses import replace
from typing import Any

import pytest

from panal.core.clock import ManualClock
from panal.core.ids import IdSource
from panal.core.names import name_key
from panal.core.requests import Route
from panal.gateway.translate import Caller, read_request
from tests.support.path import principal

WHOLE_MODELS = frozenset({name_key("Careful")})


@pytest.mark.parametrize(
    ("said", "key_whole", "model", "whole"),
    [
        (None, False, "m", False),
        ("whole", False, "m", True),
        ("stream", False, "m", False),
        (None, True, "m", True),
        ("stream", True, "careful", False),
        (None, False, " CAREFUL", True),
        (None, False, "alias", True),
    ],
)
def test_the_request_is_asked_before_its_key_and_its_model(
    said: str | None, key_whole: bool, model: str, whole: bool
) -> None:
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    if said is not None or key_whole:
        body["tool_buffering"] = said
    clock = ManualClock()
    request = read_request(
        Route.CHAT,
        json.dumps(body).encode(),
        Caller(replace(principal(), tools_whole=key_whole)),
        IdSource(clock, os.urandom),
        clock,
        600.0,
        lambda _tenant, name: "careful" if name == "alias" else "",
        WHOLE_MODELS,
    )
    assert request.tools_whole is whole
