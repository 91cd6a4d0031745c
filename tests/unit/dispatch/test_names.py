"""Names in a gateway's memory: who is meant, who may, what is listed, and what an outage changes."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from panal.core.clock import ManualClock
from panal.core.errors import ModelNotAllowed, ModelNotFound, ModelResting, StoreError
from panal.core.ids import DEFAULT_PROJECT, DEFAULT_TENANT, TenantId
from panal.core.records import AliasRecord
from panal.dispatch.fleet import Fleet
from panal.dispatch.names import AGE_S_MAX, ServedNames
from tests.support.path import Path, principal


def alias(name: str, model: str, tenant: str = DEFAULT_TENANT) -> AliasRecord:
    return AliasRecord(TenantId(tenant), DEFAULT_PROJECT, name, model, 1, 1)


class Kept:
    """A store of aliases; ``away`` makes it fail."""

    def __init__(self, *aliases: AliasRecord) -> None:
        self.aliases, self.revision, self.reads, self.away = list(aliases), 1, 0, False

    async def names_revision(self) -> int:
        if self.away:
            raise StoreError("away")
        return self.revision

    async def every_alias(self) -> list[AliasRecord]:
        self.reads += 1
        return list(self.aliases)


async def names_of(*aliases: AliasRecord, models: tuple[str, ...] = ()) -> tuple[ServedNames, Kept, Fleet]:
    kept, clock = Kept(*aliases), ManualClock()
    fleet = Fleet(clock)
    fleet.set_models(models)
    names = ServedNames(kept, fleet, clock)
    await names.refresh()
    return names, kept, fleet


async def test_a_name_stands_for_a_model_by_the_rule_and_in_its_tenant_only() -> None:
    names, _kept, _fleet = await names_of(
        alias("Fast", "Small"), alias("mine", "Large", "tnt_other"), models=("Small", "Large")
    )
    assert names.model_of(DEFAULT_TENANT, " FAST ") == "Small"
    assert names.model_of(DEFAULT_TENANT, "small") == "Small"
    assert names.model_of(DEFAULT_TENANT, "mine") == ""
    assert names.model_of(TenantId("tnt_other"), "mine") == "Large"
    assert names.model_of(TenantId("tnt_other"), "fast") == ""


async def test_an_alias_wins_over_a_model_of_its_name_and_the_log_says_so_once(caplog: Any) -> None:
    names, _kept, fleet = await names_of(alias("fast", "small"), models=("small",))
    with caplog.at_level(logging.WARNING):
        fleet.set_models(["small", "FAST"])
        assert names.model_of(DEFAULT_TENANT, "Fast") == "small"
        await names.refresh()
        await names.refresh()
    assert len(caplog.records) == 1
    assert "fast" in caplog.text
    assert names.of(principal()) == ["fast", "small"]


async def test_lists_show_what_a_key_may_use_as_it_was_written() -> None:
    names, _kept, _fleet = await names_of(alias("Fast", "small"), models=("small", "Large"))
    assert names.of(principal()) == ["Fast", "Large", "small"]
    bound = replace(principal(), models=frozenset({"fast", "large", "not there"}))
    assert names.of(bound) == ["Fast", "Large"]
    assert names.one(bound, "FAST") == "Fast"
    with pytest.raises(ModelNotAllowed):
        names.one(bound, "small")
    with pytest.raises(ModelNotFound):
        names.one(bound, "not there")


async def test_aliases_are_read_again_when_they_changed_and_now_and_then() -> None:
    names, kept, _fleet = await names_of(alias("a", "m"), models=("m",))
    kept.aliases = [alias("b", "m")]
    await names.refresh()
    assert names.model_of(DEFAULT_TENANT, "a") == "m", "nothing says that something changed"
    kept.revision += 1
    await names.refresh()
    assert (names.model_of(DEFAULT_TENANT, "a"), names.model_of(DEFAULT_TENANT, "b")) == ("", "m")
    clock = names._clock
    assert isinstance(clock, ManualClock)
    clock.advance(AGE_S_MAX + 1)
    await names.refresh()
    assert kept.reads == 3


async def test_without_the_store_the_known_names_stay() -> None:
    names, kept, _fleet = await names_of(alias("a", "m"), models=("m",))
    kept.away = True
    with pytest.raises(StoreError):
        await names.refresh()
    assert names.model_of(DEFAULT_TENANT, "a") == "m"


async def test_nodes_that_write_one_name_in_two_ways_serve_one_model() -> None:
    path = await Path().start(2)
    path.nodes[0].beat(model="Small")
    path.nodes[1].beat(model="SMALL")
    await path.settled()
    assert len(path.fleet.candidates("small")) == 2
    assert path.fleet.models() == ["Small", "m"]
    path.fleet.set_models(["m", "small"])
    assert path.fleet.model_of("small") == "small", "the store knows how it was written first"
    path.nodes[0].beat(model="other")
    path.nodes[1].beat(model="other")
    await path.settled()
    assert path.fleet.candidates("small") == []
    assert path.fleet.knows_model("SMALL")


async def test_the_node_gets_the_clients_name_and_the_books_the_models() -> None:
    path = await Path().start(1)
    task, _sink = path.begin(model="Fast", serves="m")
    node, run = await path.runner()
    assert run.model == "Fast"
    node.finish(run)
    await task
    assert path.books.finished[0].request.own_model == "m"


async def test_p13_an_alias_of_a_resting_model_is_called_by_the_clients_name() -> None:
    path = await Path().start(1)
    task, _sink = path.begin(model="Fast", serves="resting")
    with pytest.raises(ModelResting) as told:
        await task
    assert "'Fast'" in told.value.message
    assert "resting" not in told.value.message
    assert told.value.retry_after_s


async def test_a_forbidden_name_reaches_no_node() -> None:
    path = await Path().start(1)
    bound = replace(principal(), models=frozenset({"fast"}))
    with pytest.raises(ModelNotAllowed):
        await path.begin(principal=bound)[0]
    task, _sink = path.begin(principal=bound, model="FAST", serves="m")
    node, run = await path.runner()
    node.finish(run)
    await task


async def test_a_restricted_key_knows_each_model_by_a_name_that_it_may_use() -> None:
    names, _kept, _fleet = await names_of(
        alias("fast", "Small"),
        alias("quick", "Small"),
        alias("large", "Small"),
        models=("Small", "Large", "x"),
    )
    may = lambda *keys: replace(principal(), models=frozenset(keys))  # noqa: E731
    assert names.by_model(may("small", "fast")) == {"small": "Small"}
    assert names.by_model(may("quick", "fast")) == {"small": "fast"}
    assert names.by_model(may("x")) == {"x": "x"}
    assert names.by_model(may("large")) == {"small": "large"}, "the alias hides the model of that name"
    assert names.by_model(may("other")) == {}


async def test_nodes_cannot_fill_the_memory_with_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("panal.dispatch.fleet.KNOWN_MODELS_MAX", 3)
    path = await Path().start(1)
    for number in range(10):
        path.nodes[0].beat(model=f"model-{number}")
        await path.settled()
    assert len(path.fleet.models()) == 3
