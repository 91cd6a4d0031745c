"""docs/errors.md and gateway/errors.py know every error, and say the same of it."""

import importlib
import pkgutil
import re

import pytest

import panal
from panal.core import errors
from panal.core.errors import AttemptTimeout, EngineRefused, PanalError
from panal.dispatch.answer import failure_of
from panal.gateway.errors import SHAPES, shape_of
from panal.protocol.messages import WireError
from tests.architecture.pages import code, page, part, rows

NEVER_REACHES_A_CLIENT = {
    "panal.cli": "the command line says it to a person",
    "panal.node": "leaves the node as a WireError",
    "panal.bus": "handled where connections are made",
}


def kinds_of_errors(parent: type[PanalError] = PanalError) -> list[type[PanalError]]:
    found = [parent]
    for kind in parent.__subclasses__():
        found += kinds_of_errors(kind)
    return found


CORE = [kind for kind in kinds_of_errors() if kind.__module__ == errors.__name__]


def documented() -> dict[str, int]:
    """Code -> status, of all tables of the page."""
    found = {}
    for cells in rows(page("docs/errors.md")):
        if len(cells) > 1 and cells[0].startswith("`") and cells[1].isdecimal():
            assert code(cells[0]) not in found, f"{cells[0]} stands in docs/errors.md twice"
            found[code(cells[0])] = int(cells[1])
    return found


@pytest.mark.parametrize("kind", CORE, ids=lambda kind: kind.__name__)
def test_every_error_has_a_shape_and_a_row_with_its_status(kind: type[PanalError]) -> None:
    assert kind in SHAPES, f"add a row for {kind.__name__} to gateway/errors.py"
    assert kind.code in documented(), f"add a row for `{kind.code}` to docs/errors.md"
    assert documented()[kind.code] == SHAPES[kind].status


def test_no_code_is_documented_that_does_not_exist() -> None:
    limits = {cells[0].strip("`") for cells in rows(part(page("docs/errors.md"), "Time limits"))}
    assert documented().keys() - {kind.code for kind in CORE} <= limits


def test_errors_outside_of_core_never_reach_a_client() -> None:
    for module in pkgutil.walk_packages(panal.__path__, "panal."):
        if ".migrations" not in module.name and "__main__" not in module.name:
            importlib.import_module(module.name)
    outside = [
        kind for kind in kinds_of_errors() if kind not in CORE and kind.__module__.startswith("panal.")
    ]
    for kind in outside:
        assert kind.__module__.startswith(tuple(NEVER_REACHES_A_CLIENT)), kind


@pytest.mark.parametrize("kind", CORE, ids=lambda kind: kind.__name__)
def test_every_error_explains_itself_in_one_sentence_or_more(kind: type[PanalError]) -> None:
    assert kind.__doc__ and kind.__doc__.strip().endswith(".")


def wire_kinds() -> list[str]:
    """The kinds, as the message's own docstring lists them."""
    text = re.sub(r"\([^)]*\)", "", WireError.__doc__ or "")
    listed = re.search(r"``kind``:([^.]+)\.", text)
    assert listed
    return [word.strip() for word in listed[1].split("|")]


@pytest.mark.parametrize("kind", wire_kinds())
def test_every_kind_of_wire_error_is_explained(kind: str) -> None:
    explained = part(page("docs/errors.md"), "What a node says went wrong")
    assert kind in [code(cells[0]) for cells in rows(explained)]


@pytest.mark.parametrize("kind", wire_kinds())
def test_what_becomes_of_a_wire_error_is_documented(kind: str) -> None:
    failure = failure_of(WireError(kind=kind, code="total" if kind == "timeout" else "", message="why"))
    assert documented()[failure.code] == shape_of(failure).status


@pytest.mark.parametrize("limit", ["first_token", "between_tokens", "total", "predicted_first_token"])
def test_every_time_limit_is_explained(limit: str) -> None:
    assert limit in [code(cells[0]) for cells in rows(part(page("docs/errors.md"), "Time limits"))]


def test_limits_that_an_agent_kept_reach_the_client_as_documented() -> None:
    failures = [
        failure_of(WireError(kind="timeout", code=limit, message="why"))
        for limit in ("first_token", "between_tokens")
    ]
    usual = AttemptTimeout("first_token", 1.0).code
    listed = {code(cells[0]): cells[1] for cells in rows(part(page("docs/errors.md"), "Time limits"))}
    special = {name: int(status) for name, status in listed.items() if status.isdecimal()}
    assert special == {each.code: shape_of(each).status for each in failures if each.code != usual}


def test_an_engine_s_own_status_is_kept() -> None:
    assert shape_of(EngineRefused("too long", status=422, body=b"{}")).status == 422
