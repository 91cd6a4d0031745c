"""A gateway process: what arrives from the bus, and what is read from the store each second."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from panal.bus.seam import GatewayBus
from panal.core.clock import Clock
from panal.core.errors import BusError, StoreError
from panal.core.ids import NodeKey
from panal.core.nodes import Membership
from panal.core.records import NodeRecord
from panal.dispatch.bookings import Bookings
from panal.dispatch.dispatcher import Dispatcher
from panal.dispatch.fleet import Fleet, NodeFacts
from panal.dispatch.limiter import Limiter
from panal.dispatch.names import ServedNames
from panal.dispatch.watch import Watch
from panal.gateway.readiness import Readiness, readiness, refusal
from panal.identity.key_directory import KeyDirectory
from panal.protocol.messages import Frame, Heartbeat
from panal.store.store import Store
from panal.telemetry.logs import fields
from panal.telemetry.metrics import GatewayMetrics

REFRESH_EACH_S = 1.0
STORE_LATE_S = 5.0
"""A store that keeps a refresh waiting for longer is away, though no statement has failed yet."""

FLUSH_S_MAX = 2.0
FLUSH_AGAIN_S = 0.25

log = logging.getLogger("panal.gateway")


@dataclass(slots=True)
class Gateway:
    """The parts of a gateway, wired by cli. Implements bus.seam.GatewayHandlers."""

    bus: GatewayBus
    store: Store
    directory: KeyDirectory
    fleet: Fleet
    names: ServedNames
    bookings: Bookings
    dispatcher: Dispatcher
    watch: Watch
    limiter: Limiter
    metrics: GatewayMetrics
    clock: Clock
    _changed: asyncio.Event
    _revision: int = -1
    _models: tuple[str, ...] = ()
    store_away: bool = False
    _doubted: asyncio.Event = field(default_factory=asyncio.Event)
    _refreshed_s: float = float("-inf")

    # --- from the bus -----------------------------------------------------------------------------

    def on_frames(self, key: NodeKey, frames: Sequence[Frame]) -> None:
        self.dispatcher.on_frames(key, frames)

    def on_heartbeat(self, key: NodeKey, heartbeat: Heartbeat) -> None:
        self.fleet.heard(key, heartbeat)

    def on_absent(self, key: NodeKey) -> None:
        self.fleet.absent(key)
        self.dispatcher.on_absent(key, settling=self.fleet.sight.settling)

    def on_fleet_changed(self) -> None:
        self._changed.set()

    def on_connection(self, connected: bool) -> None:
        log.info("the bus is %s", "there" if connected else "away", extra=fields(action="bus_connection"))
        self.fleet.sight.connection(connected)

    # --- its own rounds ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the store once and go on the bus. Raises StoreError, BusError."""
        await self.refresh()
        self.fleet.sight.on_doubt = self._doubted.set
        await self.bus.start(self)

    async def run(self) -> None:
        """Keep the view of the store fresh and watch running answers, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watch.run())
            group.create_task(self.limiter.run())
            group.create_task(self._refresh_for_ever())
            group.create_task(self._settle_doubts())

    async def refresh(self) -> None:
        """Keys, limits, nodes, models, names. Raises StoreError; what was known stays in use."""
        await self.directory.refresh()
        await self.limiter.refresh()
        revision = await self.store.nodes_revision()
        async with self.store.reading() as tx:
            seen = await tx.models.all()
            models = tuple(each.name for each in sorted(seen, key=lambda each: each.first_seen_utc_us))
            nodes = await tx.nodes.all() if revision != self._revision else None
        if nodes is not None:
            self._revision = revision
            self.fleet.set_facts(
                [facts_of(node) for node in nodes if node.membership is not Membership.PENDING]
            )
        if models != self._models:
            self._models = models
            self.fleet.set_models(models)
            self.metrics.models_known(models)
        await self.names.refresh()
        self._refreshed_s = self.clock.monotonic_seconds()

    def readiness(self) -> Readiness:
        """What is missing while requests can be answered. Raises a PanalError when none can be."""
        now_s = self.clock.monotonic_seconds()
        store_there = not self.store_away and now_s - self._refreshed_s <= STORE_LATE_S
        nothing = refusal(
            self.fleet,
            bus_there=self.bus.connected,
            store_there=store_there,
            keys_known=self.directory.answers,
        )
        if nothing is not None:
            raise nothing
        return readiness(self.fleet, now_s=now_s, utc_s=self.clock.utc_seconds(), store_there=store_there)

    async def _settle_doubts(self) -> None:
        """After an outage of the bus or of ourselves: deal with what is old, then hear every node anew."""
        while True:
            await self._doubted.wait()
            self._doubted.clear()
            try:
                await self.bus.flush(FLUSH_S_MAX)
            except BusError as error:
                log.info("the bus is not there yet: %s", error.message, extra=fields(action="bus_doubtful"))
                await asyncio.sleep(FLUSH_AGAIN_S)
                self._doubted.set()
                continue
            self.fleet.hear_anew()

    async def _refresh_for_ever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(REFRESH_EACH_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                await self.refresh()
                if self.store_away:
                    log.info("the store is there again", extra=fields(action="store_back"))
                self.store_away = False
            except StoreError as error:
                if not self.store_away:
                    log.warning("the store is away: %s", error.message, extra=fields(action="store_away"))
                self.store_away = True


def facts_of(node: NodeRecord) -> NodeFacts:
    """What routing needs of a node's row."""
    return NodeFacts(
        node_id=node.node_id,
        key=node.key,
        name=node.name,
        node_class=node.node_class,
        site=node.site,
        country=node.country,
        data_class=node.data_class,
        membership=node.membership,
    )
