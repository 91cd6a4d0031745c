"""Operations on nodes and join tokens."""

from dataclasses import replace

import pytest

from panal.core.errors import BusError, Conflict, NotAllowed, NotFound
from panal.core.nodes import Membership, NodeClass
from panal.identity.join_tokens import TokenWish
from panal.protocol.joining import JoinToken
from panal.store import open_store
from tests.support.rows import node_key, node_row
from tests.unit.management.office import PIN, open_office


@pytest.fixture
async def office(tmp_path):
    async with open_office(tmp_path) as office:
        yield office


async def _add(office, **changes) -> None:
    async with office.store.transaction() as tx:
        await tx.nodes.admit(node_row(**changes))


async def test_a_token_is_shown_once(office):
    tokens = office.management.join_tokens
    made = await tokens.create(office.admin, TokenWish(node_class=NodeClass.LAPTOP, uses=2))
    assert JoinToken.parse(made.token).pin == PIN
    page = await tokens.list(office.operator)
    assert page.items == [made.view]
    assert made.token.split("_")[2] not in repr(page)
    assert (made.view.state, made.view.uses_left) == ("good", 2)


async def test_a_revoked_token_stays_listed(office):
    tokens = office.management.join_tokens
    made = await tokens.create(office.admin, TokenWish())
    assert (await tokens.revoke(office.admin, made.view.id)).state == "revoked"
    assert (await tokens.revoke(office.admin, made.view.id)).state == "revoked"
    assert [view.state for view in (await tokens.list(office.admin)).items] == ["revoked"]
    assert (await office.actions())[2:] == ["token.create", "token.revoke"]
    with pytest.raises(NotFound):
        await tokens.revoke(office.admin, "jtk_none")


async def test_an_old_token_is_listed_as_expired(office):
    tokens = office.management.join_tokens
    await tokens.create(office.admin, TokenWish(life_s=60))
    office.clock.advance(61)
    assert (await tokens.list(office.admin)).items[0].state == "expired"


async def test_nodes_are_listed_in_pages(office):
    for number in range(1, 6):
        await _add(office, number=number)
    nodes = office.management.nodes
    first = await nodes.list(office.operator, limit=3)
    second = await nodes.list(office.operator, limit=3, after=first.next)
    assert [view.name for view in [*first.items, *second.items]] == [
        "desk", "desk-2", "desk-3", "desk-4", "desk-5",
    ]  # fmt: skip
    assert second.next == ""


async def test_a_node_walks_through_its_states_and_each_step_is_told_and_audited(office):
    await _add(office, membership=Membership.PENDING)
    nodes = office.management.nodes
    steps = [
        await nodes.approve(office.admin, "desk"),
        await nodes.cordon(office.admin, "node_0001", "new fan"),
        await nodes.uncordon(office.admin, "desk"),
        await nodes.drain(office.admin, "desk", "moving"),
        await nodes.revoke(office.admin, "desk", "sold"),
    ]
    assert [step.membership for step in steps] == ["active", "cordoned", "active", "draining", "revoked"]
    assert [step.reason for step in steps] == ["", "new fan", "", "moving", "sold"]
    assert len(office.told) == 5
    assert office.issuer.revoked == [node_key(1)]
    assert (await office.actions())[2:] == [
        "node.approve", "node.cordon", "node.uncordon", "node.drain", "node.revoke",
    ]  # fmt: skip


async def test_doing_it_twice_is_no_error_and_no_second_event(office):
    await _add(office)
    await office.management.nodes.cordon(office.admin, "desk", "one")
    view = await office.management.nodes.cordon(office.admin, "desk", "two")
    assert view.reason == "one"
    assert (await office.actions())[2:] == ["node.cordon"]


@pytest.mark.parametrize(
    ("membership", "verb"),
    [
        (Membership.CORDONED, "approve"),
        (Membership.PENDING, "cordon"),
        (Membership.PENDING, "uncordon"),
        (Membership.PENDING, "drain"),
        (Membership.REVOKED, "approve"),
        (Membership.REVOKED, "cordon"),
        (Membership.REVOKED, "uncordon"),
        (Membership.REVOKED, "drain"),
    ],
)
async def test_what_the_state_forbids_is_a_conflict(office, membership, verb):
    await _add(office, membership=membership)
    with pytest.raises(Conflict):
        await getattr(office.management.nodes, verb)(office.admin, "node_0001")
    assert office.told == []


async def test_a_revocation_the_bus_did_not_hear_can_be_repeated(office):
    await _add(office)
    office.issuer.away = True
    with pytest.raises(BusError):
        await office.management.nodes.revoke(office.admin, "desk", "lost")
    office.issuer.away = False
    view = await office.management.nodes.revoke(office.admin, "node_0001")
    assert (view.membership, view.reason) == ("revoked", "lost")
    assert office.issuer.revoked == [node_key(1)]
    assert (await office.actions())[2:] == ["node.revoke"]


async def test_a_decision_survives_a_restart(office):
    await _add(office)
    await office.management.nodes.drain(office.admin, "desk", "moving")
    again = await open_store(f"sqlite:///{office.store._engine.url.database}")
    async with again.reading() as tx:
        (node,) = await tx.nodes.all()
    await again.close()
    assert (node.membership, node.reason) == (Membership.DRAINING, "moving")


@pytest.mark.parametrize("verb", ["approve", "cordon", "uncordon", "drain", "revoke"])
async def test_only_an_admin_changes_nodes(office, verb):
    await _add(office)
    for actor in (office.user, office.operator):
        with pytest.raises(NotAllowed, match="admin"):
            await getattr(office.management.nodes, verb)(actor, "desk")
    assert (await office.management.nodes.show(office.operator, "desk")).membership == "active"


async def test_a_user_sees_neither_nodes_nor_tokens(office):
    management = office.management
    with pytest.raises(NotAllowed):
        await management.nodes.list(office.user)
    with pytest.raises(NotAllowed):
        await management.nodes.show(office.user, "desk")
    with pytest.raises(NotAllowed):
        await management.join_tokens.list(office.user)
    with pytest.raises(NotAllowed):
        await management.join_tokens.create(office.operator, TokenWish())


async def test_another_tenants_node_is_not_found(office):
    await _add(office, tenant_id="tnt_other")
    with pytest.raises(NotFound):
        await office.management.nodes.show(office.admin, "node_0001")
    with pytest.raises(NotFound):
        await office.management.nodes.revoke(office.admin, "desk")


class _Neighbours:
    """In the place of the controller."""

    def __init__(self, office, answer):
        self.asked = []
        self._answer = answer
        office.management.nodes._means = replace(office.management.nodes._means, wake=self)

    def __call__(self, sleeper):
        self.asked.append(sleeper.node_id)
        return self._answer


async def test_a_node_that_opted_in_is_woken_by_its_neighbours_and_it_is_written_down(office):
    neighbours = _Neighbours(office, ("desk-2",))
    await _add(office, wake_macs=("3c:52:82:00:00:01",))
    view = await office.management.nodes.wake(office.operator, "desk")
    assert (view.node, view.awake, view.asked) == ("desk", False, ["desk-2"])
    assert neighbours.asked == ["node_0001"]
    assert (await office.actions())[-1] == "node.wake"
    shown = await office.management.nodes.show(office.operator, "desk")
    assert shown.wakeable
    assert "3c:52" not in repr(shown), "the address itself is shown to nobody"
    _Neighbours(office, None)
    assert (await office.management.nodes.wake(office.operator, "desk")).awake


async def test_a_node_that_did_not_opt_in_is_never_woken(office):
    neighbours = _Neighbours(office, ("desk-2",))
    await _add(office)
    await _add(office, number=2, membership=Membership.REVOKED, wake_macs=("3c:52:82:00:00:02",))
    before = await office.actions()
    with pytest.raises(Conflict, match="opted in"):
        await office.management.nodes.wake(office.admin, "desk")
    with pytest.raises(Conflict, match="revoked"):
        await office.management.nodes.wake(office.admin, "node_0002")
    with pytest.raises(NotAllowed):
        await office.management.nodes.wake(office.user, "desk")
    assert neighbours.asked == []
    assert await office.actions() == before


async def test_without_a_live_neighbour_it_is_said_plainly(office):
    _Neighbours(office, ())
    await _add(office, wake_macs=("3c:52:82:00:00:01",))
    with pytest.raises(Conflict, match="No other live node at the site Madrid"):
        await office.management.nodes.wake(office.operator, "desk")
