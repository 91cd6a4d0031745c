"""The control path in its first form: knows nodes, judges instances, renews credentials, keeps counts.

Heartbeats and reports are handled at once and leave only bounded notes; the database is touched by one
task, each second. A store that is away costs nothing but delay: notes stay until they are written.

Every gateway process has a controller that hears everything, so that it knows the fleet when its turn
comes; only the one whose process leads (``leadership``) instructs nodes and writes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from panal.bus.seam import ControllerBus
from panal.controller.contributions import contribution
from panal.controller.instances import Instances, Verdict
from panal.controller.leadership import Leadership
from panal.controller.waking import Wakes
from panal.core.clock import Clock
from panal.core.errors import BadRequest, BusError, Conflict, SettingsError, StoreError
from panal.core.ids import ApiKeyId, IdSource, InstanceId, NodeId, NodeKey, PrincipalId
from panal.core.nodes import KNOWN_MODELS_MAX, Membership
from panal.core.principals import Principal, Role
from panal.core.records import NodeRecord, utc_us
from panal.identity.seams import CredentialIssuer
from panal.protocol.messages import AttemptCounts, Heartbeat, Instruction, Report
from panal.store.store import Store, Transaction
from panal.telemetry.logs import fields

ROUND_EACH_S = 1.0
SEEN_WRITTEN_EACH_S = 10.0
COUNTS_KEPT_MAX = 10_000
COPY_TOLD_EACH_S = 60.0
"""Of copies of one node log and audit hear so often; each copy itself is refused all the same."""
RENEW_EACH_S = 0.5
"""A node gets a fresh credential no more often."""
TOLD_AGAIN_S = 3.0
"""A node that has not said so long that it carried an instruction out is told again."""
VERB = {Membership.CORDONED: "cordon", Membership.DRAINING: "drain", Membership.ACTIVE: "uncordon"}

log = logging.getLogger("panal.controller")


@dataclass(slots=True)
class Told:
    """What an instance was last told of its membership, and by which instruction."""

    instance: InstanceId
    membership: Membership
    instruction: str
    said_s: float
    carried_out: bool = False


class Controller:
    """One per process. ``credential_s`` is the life of the credentials it gives to nodes."""

    def __init__(
        self,
        bus: ControllerBus,
        store: Store,
        issuer: CredentialIssuer,
        clock: Clock,
        ids: IdSource,
        credential_s: float,
        leadership: Leadership,
    ) -> None:
        self._bus = bus
        self._store = store
        self._issuer = issuer
        self._clock = clock
        self._ids = ids
        self._credential_s = credential_s
        self._leadership = leadership
        self._acts_in: int | None = None
        """The term in which it began to act; None: it only listens."""
        self._nodes: dict[NodeKey, NodeRecord] = {}
        self._instances = Instances()
        self._told: dict[NodeKey, Told] = {}
        self._refused: dict[tuple[NodeKey, InstanceId], float] = {}
        self._copy_told_s: dict[NodeKey, float] = {}
        self._renewed_s: dict[NodeKey, float] = {}
        self._audit: list[tuple[NodeRecord, str]] = []
        self._seen: dict[NodeId, int] = {}
        self._wakes = Wakes(bus, self._instances, clock, ids)
        self._models: dict[str, str] = {}
        self._models_written: dict[str, str] = {}
        self._counts: dict[tuple[NodeKey, str], AttemptCounts] = {}
        self._revision = -1
        self._revocations_due = True
        self._seen_written_s = float("-inf")
        self._hurry = asyncio.Event()

    # --- what arrives -----------------------------------------------------------------------------

    def on_heartbeat(self, key: NodeKey, heartbeat: Heartbeat) -> None:
        node = self._nodes.get(key)
        if node is None or node.node_id != heartbeat.node:
            return
        instance = InstanceId(heartbeat.instance)
        verdict = self._instances.judge(key, instance, self._clock.monotonic_seconds())
        if self._acts_in is None:
            return
        if verdict is Verdict.COPY:
            self._refuse(node, instance)
        if verdict is not Verdict.SPEAKS:
            return
        self._seen[node.node_id] = utc_us(self._clock)
        for report in heartbeat.replicas:
            if report.model in self._models or len(self._models) < KNOWN_MODELS_MAX:
                self._models[report.model] = report.twin
        self._tell_membership(node, instance)

    def on_report(self, key: NodeKey, report: Report) -> None:
        node = self._nodes.get(key)
        if self._acts_in is None or node is None or node.node_id != report.node:
            return  # a node says again what nobody took note of
        told = self._told.get(key)
        if told is not None and report.instruction and report.instruction == told.instruction:
            told.carried_out = True
        if report.renew:
            self._renew(node, InstanceId(report.instance))
        if report.wake is not None:
            self._wakes.told(node, report.wake)
        for counts in report.counts:
            if len(self._counts) < COUNTS_KEPT_MAX:
                self._counts[key, counts.attempt] = counts
        if report.counts:
            self._hurry.set()

    def wake(self, sleeper: NodeRecord) -> tuple[str, ...] | None:
        """Ask live nodes of its site to wake it: see Wakes.ask."""
        return self._wakes.ask(sleeper, self._nodes.values())

    def changed(self) -> None:
        """Something changed in the store: look now, and let every gateway look."""
        self._hurry.set()
        self._announce()

    # --- its own rounds ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled. ``refresh`` must have been called once."""
        self._hurry.set()  # what an earlier process left undone is done at once
        while True:
            try:
                async with asyncio.timeout(ROUND_EACH_S):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            self._hurry.clear()
            try:
                await self.round()
            except StoreError as error:
                log.warning("the store is away: %s", error.message, extra=fields(action="store_away"))
            except Conflict as error:
                log.warning("nothing was written: %s", error.message, extra=fields(action="write_refused"))
                self._follow_lease()
            except BadRequest as error:
                # No node may end the controller by a word that no database takes: it says the rest again.
                log.error("news are dropped: %s", error.message, extra=fields(action="news_dropped"))
                self._drop_news()

    async def round(self) -> None:
        """One look at the store, and everything that waits to be written. Raises StoreError, Conflict."""
        self._follow_lease()
        await self.refresh()
        if self._acts_in is not None:
            await self._write_news()
            await self._write_counts()
        # On every host, since each keeps a list of its own, and a bus that starts reads that of its host.
        await self._ensure_revoked()

    async def refresh(self) -> None:
        """Read nodes again if they changed. Raises StoreError."""
        revision = await self._store.nodes_revision()
        if revision == self._revision:
            return
        async with self._store.reading() as tx:
            nodes = await tx.nodes.all()
        self._revocations_due = True
        self._nodes = {node.key: node for node in nodes if node.membership is not Membership.PENDING}
        self._revision = revision
        self._instances.keep_only(set(self._nodes))
        of_nodes: tuple[dict[NodeKey, Any], ...] = (self._told, self._copy_told_s, self._renewed_s)
        for kept in of_nodes:
            for key in kept.keys() - self._nodes.keys():
                del kept[key]
        if self._acts_in is not None:
            self._tell_all()

    def _tell_all(self) -> None:
        for key, node in self._nodes.items():
            instance = self._instances.current(key)
            if instance is not None:
                self._tell_membership(node, instance)

    def _follow_lease(self) -> None:
        """Begin anew in every term: an earlier controller may have told nodes something else."""
        term = self._leadership.term()
        if term == self._acts_in:
            return
        self._acts_in = term
        self._revocations_due = True
        for kept in (self._told, self._refused, self._seen, self._models, self._models_written, self._counts):
            kept.clear()
        self._wakes.forget()
        self._audit.clear()
        if term is not None:
            self._announce()
            self._tell_all()

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[Transaction]:
        """A transaction that another term's beginning keeps out. Raises Conflict, StoreError."""
        term = self._leadership.term()
        if term is None or term != self._acts_in:
            raise Conflict("This process leads no more.")
        async with self._store.transaction() as tx:
            await self._leadership.require(tx, term)
            yield tx

    def _drop_news(self) -> None:
        """Forget what waits to be written."""
        for kept in (self._seen, self._models, self._counts):
            kept.clear()
        self._audit.clear()
        self._wakes.forget()

    async def _write_news(self) -> None:
        now_s = self._clock.monotonic_seconds()
        models = {name: twin for name, twin in self._models.items() if self._models_written.get(name) != twin}
        seen_due = bool(self._seen) and now_s - self._seen_written_s >= SEEN_WRITTEN_EACH_S
        if not models and not seen_due and not self._audit and not self._wakes.due:
            return
        seen, audit, wakes = dict(self._seen), list(self._audit), dict(self._wakes.due)
        async with self._writing() as tx:
            for name, twin in models.items():
                await tx.models.seen(name, twin, utc_us(self._clock))
            if seen_due:
                await tx.nodes.note_seen(seen)
            for node_id, macs in wakes.items():
                await tx.nodes.set_wake_macs(node_id, macs)
            for node, action in audit:
                await tx.audit.append(
                    event_id=self._ids.other("evt"),
                    actor=_controller_of(node),
                    action=action,
                    target=node.node_id,
                    now_utc_us=utc_us(self._clock),
                    outcome="refused",
                )
        self._models_written.update(models)
        del self._audit[: len(audit)]
        self._wakes.written(wakes)
        if seen_due:
            self._seen.clear()
            self._seen_written_s = now_s
        if models:
            self._announce()

    async def _write_counts(self) -> None:
        if not self._counts:
            return
        counts = dict(self._counts)
        now_utc_us = utc_us(self._clock)
        made = [
            contribution(self._nodes[key], each, now_utc_us)
            for (key, _name), each in counts.items()
            if key in self._nodes
        ]
        async with self._writing() as tx:
            await tx.contributions.confirm([each for each in made if each is not None])
        by_key: dict[NodeKey, list[str]] = {}
        for key, name in counts:
            self._counts.pop((key, name), None)
            by_key.setdefault(key, []).append(name)
        for key, names in by_key.items():
            self._instruct(key, Instruction(id=self._ids.other("ist"), verb="counts_seen", attempts=names))

    async def _ensure_revoked(self) -> None:
        """What the store calls revoked the bus refuses, also after a crash between the two."""
        if not self._revocations_due:
            return
        async with self._store.reading() as tx:
            keys = await tx.nodes.revoked_keys()
        try:
            await self._issuer.ensure_revoked(keys)
        except (BusError, SettingsError) as error:
            log.warning("revocations have to wait: %s", error.message, extra=fields(action="revoke_waits"))
            return
        self._revocations_due = False

    # --- what it tells nodes ----------------------------------------------------------------------

    def _tell_membership(self, node: NodeRecord, instance: InstanceId) -> None:
        """Once for each instance and each change, and again until the node says that it was carried out."""
        told = self._told.get(node.key)
        now_s = self._clock.monotonic_seconds()
        if told is not None and (told.instance, told.membership) == (instance, node.membership):
            if told.carried_out or now_s - told.said_s < TOLD_AGAIN_S:
                return
        elif told is None or told.instance != instance:
            self._say(node, instance, "accept")
        # Also 'uncordon' for a node that is new here: an earlier controller may have cordoned it.
        last = self._say(node, instance, VERB[node.membership], node.reason)
        self._told[node.key] = Told(instance, node.membership, last, now_s)

    def _announce(self) -> None:
        """A hint: gateways look each second anyway, so that nothing depends on the bus here."""
        try:
            self._bus.fleet_changed()
        except BusError as error:
            log.info("gateways could not be told: %s", error.message, extra=fields(action="announce_failed"))

    def _refuse(self, node: NodeRecord, instance: InstanceId) -> None:
        now_s = self._clock.monotonic_seconds()
        last_s = self._refused.get((node.key, instance))
        if last_s is not None and now_s - last_s < ROUND_EACH_S:
            return
        if last_s is None and len(self._refused) > COUNTS_KEPT_MAX:
            self._refused.clear()
        if last_s is None and now_s - self._copy_told_s.get(node.key, float("-inf")) >= COPY_TOLD_EACH_S:
            self._copy_told_s[node.key] = now_s
            self._audit.append((node, "node.second_instance"))
            log.warning(
                "a second instance of %s is refused", node.name, extra=fields(action="instance_refused")
            )
        self._refused[node.key, instance] = now_s
        self._say(
            node,
            instance,
            "refuse",
            "Another machine runs an agent with this identity. If this machine was copied from it, remove "
            "the agent's key file here and join again with a new token.",
        )

    def _renew(self, node: NodeRecord, instance: InstanceId) -> None:
        if self._instances.current(node.key) not in (None, instance):
            return
        now_s = self._clock.monotonic_seconds()
        if now_s - self._renewed_s.get(node.key, float("-inf")) < RENEW_EACH_S:
            return
        self._renewed_s[node.key] = now_s
        credential = self._issuer.node_credential(node.key, int(self._credential_s))
        self._instruct(
            node.key,
            Instruction(
                id=self._ids.other("ist"), verb="credential", instance=instance, credential=credential
            ),
        )

    def _say(self, node: NodeRecord, instance: InstanceId, verb: str, reason: str = "") -> str:
        """Returns the instruction's id."""
        instruction = Instruction(id=self._ids.other("ist"), verb=verb, instance=instance, reason=reason)
        self._instruct(node.key, instruction)
        return instruction.id

    def _instruct(self, key: NodeKey, instruction: Instruction) -> None:
        term = self._leadership.term()
        if term is None or term != self._acts_in:
            return  # whoever leads by now tells it
        instruction.term = term
        try:
            self._bus.instruct(key, instruction)
        except BusError as error:
            # Told again until it is carried out; gateways enforce membership by themselves.
            log.warning("a node could not be told: %s", error.message, extra=fields(action="instruct_failed"))


def _controller_of(node: NodeRecord) -> Principal:
    """The controller acts for nobody; what it does is written down under its own name."""
    return Principal(
        principal_id=PrincipalId("prn_controller"),
        tenant_id=node.tenant_id,
        project_id=node.project_id,
        role=Role.OPERATOR,
        key_id=ApiKeyId(""),
    )
