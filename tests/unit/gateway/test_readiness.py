"""What /ready says: ready, degraded with what is missing, or nothing can be answered."""

from typing import Any

import pytest

from panal.core.errors import BusError, ModelResting, PanalError, StoreError
from panal.core.nodes import Membership, NodeClass
from panal.dispatch.fleet import Fleet
from panal.gateway.readiness import (
    REASON_OF,
    Readiness,
    node_states,
    nodes_expected,
    readiness,
    refusal,
    rest_reasons,
)
from panal.policy import owner_values as words
from panal.telemetry.metrics import REST_REASONS
from tests.support.path import Path


@pytest.fixture
async def path() -> Path:
    return await Path().start(3)


def said(path: Path, *, store_there: bool = True) -> Readiness:
    return readiness(path.fleet, now_s=path.clock.monotonic_seconds(), utc_s=1.0, store_there=store_there)


def states(path: Path) -> dict[str, int]:
    found = node_states(path.fleet, path.clock.monotonic_seconds())
    assert sum(found.values()) <= len(path.nodes)
    return {state: count for state, count in found.items() if count}


def set_facts(path: Path, *changes: dict[str, Any]) -> None:
    path.fleet.set_facts(
        [path.facts(node, **change) for node, change in zip(path.nodes, changes, strict=True)]
    )


async def test_all_there_is_ready_and_every_state_is_counted_also_at_zero(path: Path) -> None:
    assert (said(path).status, said(path).reasons) == ("ready", [])
    counted = node_states(path.fleet, path.clock.monotonic_seconds())
    assert dict(counted) == {
        "ready": 3, "resting": 0, "faulty": 0, "missing": 0, "away": 0, "cordoned": 0
    }  # fmt: skip
    assert nodes_expected(path.fleet) == 3


async def test_p23_a_silent_node_without_an_owner_is_missing(path: Path) -> None:
    path.clock.advance(2.0)
    for node in path.nodes[:2]:
        node.beat()
    await path.settled()
    assert said(path).status == "degraded"
    assert [(each.code, each.count) for each in said(path).reasons] == [("nodes_missing", 1)]
    assert states(path) == {"ready": 2, "missing": 1}
    path.clock.advance(60.0)
    for node in path.nodes[:2]:
        node.beat()
    await path.settled()
    path.fleet.forget_lost()
    assert states(path) == {"ready": 2, "missing": 1}, "also once its record is forgotten"


async def test_a_desk_that_was_switched_off_is_no_fault_and_a_cordoned_node_neither(path: Path) -> None:
    set_facts(path, {}, {"node_class": NodeClass.DESKTOP}, {"membership": Membership.CORDONED})
    path.clock.advance(2.0)
    path.nodes[0].beat()
    await path.settled()
    assert said(path).status == "ready"
    assert states(path) == {"ready": 1, "away": 1, "cordoned": 1}
    assert nodes_expected(path.fleet) == 1


async def test_an_engine_that_does_not_work_is_told_and_an_owner_at_work_is_not(path: Path) -> None:
    one, two, three = path.nodes
    one.beat(healthy=False)
    two.beat(state="degraded", healthy=False)
    three.beat(state="owner")
    await path.settled()
    assert [(each.code, each.count) for each in said(path).reasons] == [("nodes_faulty", 2)]
    assert states(path) == {"faulty": 2, "resting": 1}


async def test_p29_nodes_whose_idle_state_is_unknown_are_counted_apart(path: Path) -> None:
    one, two, three = path.nodes
    one.beat(state="owner", reason=words.UNKNOWN)
    two.beat(state="owner", reason="the secret game of its owner")
    three.beat(state="available", reason=words.UNKNOWN)
    await path.settled()
    counted = rest_reasons(path.fleet, path.clock.monotonic_seconds())
    assert set(counted) == set(REST_REASONS), "bounded, whatever a node says"
    assert {name: count for name, count in counted.items() if count} == {"unknown": 1, "other": 1}
    path.clock.advance(2.0)
    silent = rest_reasons(path.fleet, path.clock.monotonic_seconds())
    assert not sum(silent.values()), "a node that is not heard rests for no reason"


def test_every_word_that_a_node_rests_for_has_its_label() -> None:
    said = {value for name, value in vars(words).items() if name.isupper() and isinstance(value, str)}
    assert said - set(REASON_OF) == {words.GIVING_BACK, words.NOT_WARM}, "those two are no rest of their own"
    assert set(REASON_OF.values()) < set(REST_REASONS)


async def test_a_store_that_is_away_is_told_while_known_keys_are_served(path: Path) -> None:
    assert refused(path.fleet, store_there=False) is None
    away = said(path, store_there=False)
    assert away.status == "degraded"
    assert [(each.code, each.count) for each in away.reasons] == [("store_unavailable", 1)]
    nobody = refused(path.fleet, store_there=False, keys_known=False)
    assert isinstance(nobody, StoreError)


def refused(
    fleet: Fleet, *, bus_there: bool = True, store_there: bool = True, keys_known: bool = True
) -> PanalError | None:
    return refusal(fleet, bus_there=bus_there, store_there=store_there, keys_known=keys_known)


async def test_nothing_can_be_answered_without_the_bus_or_any_node(path: Path) -> None:
    assert refused(path.fleet) is None
    away = refused(path.fleet, bus_there=False)
    assert isinstance(away, BusError) and away.retry_after_s == 1
    path.fleet.sight.connection(False)
    both = refused(path.fleet, bus_there=False)
    assert both is not None and "the bus is away" in both.message and "no node" in both.message
    path.fleet.sight.connection(True)
    assert isinstance(refused(path.fleet), ModelResting), "who is there is not known yet"
    path.fleet.hear_anew()
    path.nodes[0].beat()
    await path.settled()
    assert refused(path.fleet) is None
