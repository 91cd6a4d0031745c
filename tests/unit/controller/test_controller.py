"""The controller over a real store, with a bus and an issuer that remember."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from panal.controller.controller import SEEN_WRITTEN_EACH_S, TOLD_AGAIN_S, Controller
from panal.controller.waking import CHANGE_EACH_S
from panal.core.clock import ManualClock
from panal.core.errors import BusError, Conflict, StoreError
from panal.core.ids import IdSource, NodeKey, RequestId
from panal.core.nodes import INCUMBENT_S, Membership
from panal.protocol.messages import AttemptCounts, Heartbeat, Instruction, ReplicaReport, Report
from panal.store import Store
from tests.support.databases import fresh_store
from tests.support.rows import node_key, node_row, token_row

KEY, MAC = node_key(1), "3c:52:82:00:00:05"


@dataclass
class Bus:
    told: list[tuple[NodeKey, Instruction]] = field(default_factory=list)
    announced: int = 0
    away: bool = False

    def instruct(self, key: NodeKey, instruction: Instruction) -> None:
        self._check()
        self.told.append((key, instruction))

    def fleet_changed(self) -> None:
        self._check()
        self.announced += 1

    def _check(self) -> None:
        if self.away:
            raise BusError("away")

    def verbs(self) -> list[str]:
        """What was told since the last call."""
        told, self.told = self.told, []
        return [instruction.verb for _key, instruction in told]


@dataclass
class Issuer:
    ensured: list[list[NodeKey]] = field(default_factory=list)
    away: bool = False

    def node_credential(self, key: NodeKey, valid_s: int) -> str:
        return f"{key} for {valid_s}"

    async def ensure_revoked(self, keys: Iterable[NodeKey]) -> None:
        if self.away:
            raise BusError("away")
        self.ensured.append(list(keys))


@dataclass
class Lead:
    """Leadership as a test wants it."""

    now: int | None = 1
    in_store: bool = True

    def term(self) -> int | None:
        return self.now

    async def require(self, _tx: object, _term: int) -> None:
        if not self.in_store:
            raise Conflict("another leads")


class Outage:
    """A store that can be away."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = False

    def __getattr__(self, name: str) -> Any:
        if self.away:
            raise StoreError("away")
        return getattr(self._store, name)


@dataclass
class Place:
    store: Outage
    bus: Bus
    issuer: Issuer
    clock: ManualClock
    controller: Controller
    lead: Lead

    def beat(self, instance: str, model: str = "") -> None:
        replicas = [ReplicaReport(replica="rpl_1", model=model, engine="echo", twin="t")] if model else []
        self.controller.on_heartbeat(
            KEY,
            Heartbeat(node="node_0001", instance=instance, sequence=1, state="available", replicas=replicas),
        )

    def report(self, **values: Any) -> None:
        self.controller.on_report(KEY, Report(node="node_0001", instance="ins_1", **values))

    async def decide(self, membership: Membership, before: Membership, reason: str = "") -> None:
        async with self.store.transaction() as tx:
            assert await tx.nodes.decide(node_row().node_id, membership, reason, expected=before)
        await self.controller.round()

    async def actions(self) -> list[str]:
        async with self.store.reading() as tx:
            return [event.action for event in await tx.audit.list("tnt_default", limit=100)]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with fresh_store("sqlite", tmp_path) as real:
        store, bus, issuer, clock = Outage(real), Bus(), Issuer(), ManualClock()
        async with store.transaction() as tx:
            await tx.join_tokens.add(token_row())
            await tx.nodes.admit(node_row())
        lead = Lead()
        controller = Controller(bus, store, issuer, clock, IdSource(clock, os.urandom), 600.0, lead)
        await controller.round()
        issuer.ensured.clear()
        bus.announced = 0
        yield Place(store, bus, issuer, clock, controller, lead)


async def test_an_instance_is_accepted_once(place: Place) -> None:
    place.beat("ins_1")
    place.beat("ins_1")
    assert place.bus.verbs() == ["accept", "uncordon"]


async def test_an_instruction_is_repeated_until_it_was_carried_out(place: Place) -> None:
    place.beat("ins_1")
    place.bus.verbs()
    for _ in range(2):
        place.clock.advance(TOLD_AGAIN_S - 0.1)
        place.beat("ins_1")
        assert place.bus.told == []
        place.clock.advance(0.1)
        place.beat("ins_1")
        [(_key, last)] = place.bus.told
        assert last.verb == "uncordon"
        place.bus.verbs()
    place.report(instruction=last.id)
    for _ in range(9):
        place.clock.advance(1.0)
        place.beat("ins_1")
    assert place.bus.told == []


async def test_membership_is_told_once_for_each_change_and_again_to_a_new_instance(place: Place) -> None:
    place.beat("ins_1")
    place.bus.verbs()
    await place.decide(Membership.CORDONED, Membership.ACTIVE, "for repair")
    assert [told.reason for _key, told in place.bus.told] == ["for repair"]
    assert place.bus.verbs() == ["cordon"]
    place.beat("ins_1")
    await place.controller.round()
    assert place.bus.verbs() == []
    place.clock.advance(INCUMBENT_S + 0.1)
    place.beat("ins_2")
    assert place.bus.verbs() == ["accept", "cordon"]
    await place.decide(Membership.DRAINING, Membership.CORDONED)
    await place.decide(Membership.ACTIVE, Membership.DRAINING)
    assert place.bus.verbs() == ["drain", "uncordon"]


async def test_what_could_not_be_told_is_told_later(place: Place) -> None:
    place.beat("ins_1")
    place.bus.verbs()
    place.bus.away = True
    await place.decide(Membership.CORDONED, Membership.ACTIVE)
    place.bus.away = False
    for _ in range(4):
        place.clock.advance(1.0)
        place.beat("ins_1")
    assert place.bus.verbs() == ["cordon"]


async def test_a_second_instance_is_refused_and_audited_once(place: Place) -> None:
    place.beat("ins_1")
    for _ in range(4):
        place.clock.advance(0.5)
        place.beat("ins_2")
        place.clock.advance(0.5)
        place.beat("ins_1")
    verbs = place.bus.verbs()
    assert verbs[0] == "accept" and "refuse" in verbs
    await place.controller.round()
    await place.controller.round()
    assert (await place.actions()).count("node.second_instance") == 1


async def test_a_node_that_plays_ever_new_copies_fills_neither_log_nor_audit(place: Place) -> None:
    place.beat("ins_1")
    for number in range(100):
        for instance in (f"ins_copy_{number}", "ins_1", f"ins_copy_{number}"):
            place.clock.advance(0.01)
            place.beat(instance)
        place.beat("ins_1")
    assert place.bus.verbs().count("refuse") == 100, "each of them is refused"
    await place.controller.round()
    assert (await place.actions()).count("node.second_instance") == 1


async def test_credentials_are_not_made_as_often_as_a_node_likes(place: Place) -> None:
    place.beat("ins_1")
    place.bus.verbs()
    for _ in range(50):
        place.report(renew=True)
    assert place.bus.verbs() == ["credential"]
    place.clock.advance(1.0)
    place.report(renew=True)
    assert place.bus.verbs() == ["credential"]


async def test_a_node_cannot_fill_the_store_with_names(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("panal.controller.controller.KNOWN_MODELS_MAX", 3)
    for number in range(10):
        place.beat("ins_1", model=f"model-{number}")
    await place.controller.round()
    async with place.store.reading() as tx:
        assert len(await tx.models.all()) == 3


@pytest.mark.parametrize(
    "name", ["", "req_1", "req_1.", ".1", "req_1.x", "req_1.\u0661", "req_1." + "9" * 5000]
)
async def test_counts_under_a_name_that_is_none_are_passed_over(place: Place, name: str) -> None:
    place.beat("ins_1")
    place.report(counts=[counts_of(name), counts_of("req_1.1")])
    await place.controller.round()
    async with place.store.reading() as tx:
        assert len(await tx.contributions.of_node(node_row().node_id)) == 1


async def test_a_word_that_no_database_takes_costs_the_news_and_not_the_controller(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.beat("ins_1", model="fine")
    place.report(counts=[counts_of("req_1.1", tokens=2**70)])
    running = asyncio.create_task(place.controller.run())
    try:
        async with asyncio.timeout(20):
            while not any("news are dropped" in line for line in caplog.messages):
                assert not running.done()
                await asyncio.sleep(0.01)
        place.report(counts=[counts_of("req_2.1")])
        async with asyncio.timeout(20):
            while not await contributions_of(place, "req_2"):
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_addresses_change_only_now_and_then(place: Place) -> None:
    place.beat("ins_1")
    place.report(wake=["00:11:22:33:44:55"])
    await place.controller.round()
    before = await place.store.nodes_revision()
    for number in range(20):
        place.report(wake=[f"00:11:22:33:44:{number:02x}"])
        await place.controller.round()
    assert await place.store.nodes_revision() == before
    place.clock.advance(60.0)
    place.report(wake=[])
    await place.controller.round()
    async with place.store.reading() as tx:
        [node] = await tx.nodes.all()
    assert node.wake_macs == ()


async def test_a_node_that_is_not_known_is_not_spoken_to(place: Place) -> None:
    other = node_key(2)
    place.controller.on_heartbeat(
        other, Heartbeat(node="node_0002", instance="ins_9", sequence=1, state="available")
    )
    place.controller.on_heartbeat(
        KEY, Heartbeat(node="node_0002", instance="ins_9", sequence=1, state="available")
    )
    place.controller.on_report(other, Report(node="node_0002", instance="ins_9", renew=True))
    assert place.bus.told == []


async def test_a_credential_is_renewed_for_the_instance_that_speaks_only(place: Place) -> None:
    place.beat("ins_1")
    place.bus.verbs()
    place.report(renew=True)
    [(key, told)] = place.bus.told
    assert (key, told.verb, told.instance) == (KEY, "credential", "ins_1")
    assert told.credential == f"{KEY} for 600"
    place.bus.verbs()
    place.controller.on_report(KEY, Report(node="node_0001", instance="ins_2", renew=True))
    assert place.bus.told == []


async def test_a_revoked_node_gets_no_credential(place: Place) -> None:
    place.beat("ins_1")
    await place.decide(Membership.REVOKED, Membership.ACTIVE)
    place.bus.verbs()
    place.report(renew=True)
    place.beat("ins_1")
    assert place.bus.told == []


async def contributions_of(place: Place, request: str) -> int:
    async with place.store.reading() as tx:
        return len(await tx.contributions.of_request(RequestId(request)))


def counts_of(attempt: str, tokens: int = 7) -> AttemptCounts:
    return AttemptCounts(
        attempt=attempt,
        model="echo",
        prompt_tokens=3,
        completion_tokens=tokens,
        duration_s=0.5,
        outcome="complete",
    )


async def test_counts_are_written_and_then_acknowledged(place: Place) -> None:
    place.report(counts=[counts_of("req_1.1"), counts_of("not a name")])
    assert place.bus.told == []
    await place.controller.round()
    [(_key, told)] = place.bus.told
    assert told.verb == "counts_seen"
    assert sorted(told.attempts) == ["not a name", "req_1.1"]
    async with place.store.reading() as tx:
        [made] = await tx.contributions.of_request(RequestId("req_1"))
    assert (made.node_id, made.completion_tokens) == ("node_0001", 7)


async def test_a_store_outage_keeps_every_note(place: Place) -> None:
    place.store.away = True
    place.beat("ins_1", model="new")
    place.report(counts=[counts_of("req_1.1")])
    for _ in range(3):
        with pytest.raises(StoreError):
            await place.controller.round()
    assert "counts_seen" not in place.bus.verbs()
    place.store.away = False
    place.clock.advance(SEEN_WRITTEN_EACH_S)
    await place.controller.round()
    assert place.bus.verbs() == ["counts_seen"]
    async with place.store.reading() as tx:
        assert [each.name for each in await tx.models.all()] == ["new"]
        assert len(await tx.contributions.of_request(RequestId("req_1"))) == 1
        node = await tx.nodes.get(node_row().node_id)
    assert node is not None and node.last_seen_utc_us is not None


async def test_p23_a_store_that_hangs_delays_no_node(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nodes say is judged as it comes; only what must be written waits for the round under way."""
    answered = asyncio.Event()

    async def hangs() -> int:
        await answered.wait()
        return -1

    monkeypatch.setattr(place.store, "nodes_revision", hangs, raising=False)
    round_under_way = asyncio.get_running_loop().create_task(place.controller.round())
    await asyncio.sleep(0)
    place.beat("ins_1")
    assert place.bus.verbs() == ["accept", "uncordon"]
    place.report(renew=True)
    assert place.bus.verbs() == ["credential"]
    assert not round_under_way.done()
    answered.set()
    await round_under_way


async def test_the_bus_being_away_stops_no_round(place: Place) -> None:
    place.beat("ins_1", model="new")
    place.report(counts=[counts_of("req_1.1")])
    place.bus.away = place.issuer.away = True
    place.controller.changed()
    await place.controller.round()
    async with place.store.reading() as tx:
        assert [each.name for each in await tx.models.all()] == ["new"]
        assert len(await tx.contributions.of_request(RequestId("req_1"))) == 1


async def test_revocations_are_made_good_at_start_at_each_change_and_after_a_failure(place: Place) -> None:
    place.lead.now = 2
    await place.controller.round()
    await place.controller.round()
    assert place.issuer.ensured == [[]]
    place.issuer.away = True
    await place.decide(Membership.REVOKED, Membership.ACTIVE)
    assert place.issuer.ensured == [[]]
    place.issuer.away = False
    await place.controller.round()
    await place.controller.round()
    assert place.issuer.ensured == [[], [KEY]]


# --- only the leader acts -----------------------------------------------------------------------------


async def test_who_does_not_lead_hears_everything_and_does_nothing_but_keep_revocations(place: Place) -> None:
    place.lead.now = None
    await place.controller.round()
    place.beat("ins_1", model="new")
    place.report(renew=True, counts=[counts_of("req_1.1")])
    await place.decide(Membership.REVOKED, Membership.ACTIVE)
    assert place.bus.told == []
    assert place.issuer.ensured == [[], [KEY]], "each host has a list of its own"
    async with place.store.reading() as tx:
        assert await tx.models.all() == []
        assert await tx.contributions.of_request(RequestId("req_1")) == []


async def test_a_new_leader_tells_at_once_what_it_heard_before_and_by_its_own_term(place: Place) -> None:
    place.lead.now = None
    await place.controller.round()
    place.beat("ins_1")
    place.lead.now = 7
    await place.controller.round()
    assert {told.term for _key, told in place.bus.told} == {7}
    assert place.bus.verbs() == ["accept", "uncordon"]
    assert place.issuer.ensured == [[], []], "and once more with the new term"


async def test_the_copy_of_a_node_stays_refused_when_another_leads(place: Place) -> None:
    place.lead.now = None
    await place.controller.round()
    place.beat("ins_1")
    place.beat("ins_2")
    place.beat("ins_1")
    place.lead.now = 7
    await place.controller.round()
    place.bus.verbs()
    place.beat("ins_2")
    assert place.bus.verbs() == ["refuse"]


async def test_a_leader_whose_lease_ends_between_two_rounds_says_nothing_more(place: Place) -> None:
    place.lead.now = None
    place.beat("ins_1")
    place.report(renew=True)
    assert place.bus.told == []
    place.lead.now = 2
    place.beat("ins_1")
    assert place.bus.told == []  # a term begins with a round


async def test_nothing_is_written_when_the_store_knows_another_leader(place: Place) -> None:
    place.beat("ins_1", model="new")
    place.report(counts=[counts_of("req_1.1")])
    place.bus.verbs()
    place.lead.in_store = False
    with pytest.raises(Conflict):
        await place.controller.round()
    assert place.bus.told == []
    async with place.store.reading() as tx:
        assert await tx.models.all() == []


async def with_neighbours(place: Place, *changes: dict[str, Any]) -> None:
    """Nodes 2, 3, ... beside the first."""
    async with place.store.transaction() as tx:
        for number, change in enumerate(changes, 2):
            await tx.nodes.admit(node_row(number, **change))
    await place.controller.round()
    place.beat("ins_1")
    place.bus.verbs()


def heard(place: Place, number: int) -> None:
    beat = Heartbeat(node=f"node_{number:04d}", instance=f"ins_{number}", sequence=1, state="available")
    place.controller.on_heartbeat(node_key(number), beat)
    place.bus.verbs()


async def test_by_which_addresses_it_may_be_woken_a_node_says_itself_and_can_take_it_back(
    place: Place,
) -> None:
    place.beat("ins_1")
    for told, kept in ((["3C-52-82-00-00-01", "nonsense"], ("3c:52:82:00:00:01",)), (None, None), ([], ())):
        place.clock.advance(CHANGE_EACH_S)
        place.report(wake=told)
        place.report(wake=["3c:52:82:00:00:99"] if told else None)  # at once again: not so often
        await place.controller.round()
        async with place.store.reading() as tx:
            node = await tx.nodes.get(node_row().node_id)
        assert node is not None
        assert node.wake_macs == (("3c:52:82:00:00:01",) if kept is None else kept), told


async def test_live_nodes_of_the_same_site_and_no_others_are_asked_to_wake(place: Place) -> None:
    await with_neighbours(place, {}, {"site": "Paris"}, {}, {"wake_macs": (MAC,)})
    for number in (2, 3, 5):
        heard(place, number)
    async with place.store.reading() as tx:
        sleeper = await tx.nodes.get("node_0005")
    assert sleeper is not None
    assert place.controller.wake(sleeper) is None, "it is awake"
    assert place.bus.told == []
    place.clock.advance(INCUMBENT_S + 0.1)
    assert place.controller.wake(sleeper) == (), "nobody is there"
    for number in (2, 3):
        heard(place, number)
    place.lead.now = None  # whichever process is asked may do it
    assert place.controller.wake(sleeper) == ("desk-2",)
    [(key, told)] = place.bus.told
    assert (key, told.verb, told.macs, told.term) == (node_key(2), "wake", [MAC], 0)
    place.bus.away = True
    assert place.controller.wake(sleeper) == ()
