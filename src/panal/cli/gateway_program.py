"""The gateway process, wired by hand: store, identity, bus, path, HTTP - and the controller beside it.

Started by ``panal up`` (or by a service) as ``panal gateway --home HOME``. It prints one JSON object a
line on its output: ``first_keys`` once in an installation's life, ``ready`` when it takes requests.
"""

import asyncio
import gc
import logging
import os
import random
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from panal.bus.authority_file import authority_path, create_or_load_authority
from panal.bus.connector import Servers
from panal.bus.issuer import NatsIssuer
from panal.bus.nats_bus import NatsControllerBus, NatsGatewayBus
from panal.bus.nkeys import verify
from panal.cli.addresses import Addresses, addresses_of
from panal.cli.descriptors import room_for_connections
from panal.cli.failures import first_of
from panal.cli.home import AdminAccess, Home
from panal.cli.life_line import die_with_parent, until_parent_is_gone
from panal.cli.logging_setup import log_to, reread_level
from panal.cli.renewal import Renewal
from panal.cli.server_tls import ServerTls
from panal.cli.signals import on_end_signals, on_reload_signal
from panal.controller.controller import Controller
from panal.core.clock import SystemClock
from panal.core.errors import PanalError
from panal.core.ids import IdSource
from panal.core.requests import InferenceRequest
from panal.core.settings import Settings
from panal.dispatch.bookings import Bookings
from panal.dispatch.dispatcher import Dispatcher
from panal.dispatch.fleet import Fleet
from panal.dispatch.limiter import Limiter
from panal.dispatch.limits import Limits
from panal.dispatch.watch import HedgeBudget, Watch
from panal.gateway.admin_routes import admin_endpoints
from panal.gateway.app import App
from panal.gateway.door import Door
from panal.gateway.endpoints import build
from panal.gateway.gateway import Gateway
from panal.gateway.http_protocol import HttpLimits
from panal.gateway.inference import Inference
from panal.gateway.listener import Listener, bound
from panal.gateway.observer import RequestObserver
from panal.gateway.public_routes import client_endpoints, join_endpoints
from panal.identity.certificates import create_or_load_ca
from panal.identity.enrolment import Enrolment
from panal.identity.key_directory import KeyDirectory
from panal.identity.salts import TenantSalts
from panal.identity.seams import Advertised
from panal.management import Management, Means, bootstrap
from panal.policy.residency import node_may_see
from panal.scheduling.continuation import KeptMemory
from panal.scheduling.replicas import ReplicaView
from panal.store import Store, open_store
from panal.store.usage_spool import UsageSpool
from panal.telemetry.logs import fields
from panal.telemetry.metrics import GatewayMetrics

STOP_GRACE_S = 5.0
GARBAGE_EACH_OBJECTS = 20_000


def run(home: Home, settings: Settings, reread: Callable[[], Settings], *, watch_parent: bool) -> None:
    """Run until a signal, or until the parent is gone. Raises SettingsError, StoreError, BusError.

    ``reread`` gives the settings as they are now; of these only the log's level is taken over at run time.
    """
    if watch_parent:
        die_with_parent()
    try:
        log_to("gateway", home.logs / "gateway.log", settings)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(home, settings, reread, watch_parent=watch_parent))
    except* PanalError as group:
        error = first_of(group)
        say("failed", message=error.message)
        raise error from None
    except* Exception:
        logging.getLogger("panal.gateway").exception("the gateway failed", extra=fields(action="failed"))
        say("failed", message=f"The gateway failed unexpectedly; see {home.logs / 'gateway.log'}.")
        raise


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it exists."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


async def _serve(
    home: Home, settings: Settings, reread: Callable[[], Settings], *, watch_parent: bool
) -> None:
    stopped = asyncio.Event()
    on_end_signals(stopped.set)
    async with AsyncExitStack() as stack:
        program = await GatewayProgram.build(home, settings, stack)

        def look_again() -> None:
            reread_level(reread)
            program.renewal.ask()

        on_reload_signal(look_again, stopped.set)
        _settle_memory()
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(task) for task in program.background()]
            if watch_parent:
                background.append(group.create_task(until_parent_is_gone(stopped)))
            await program.listen()
            say("ready", url=program.addresses.http_url, secure_url=program.addresses.https_url)
            await stopped.wait()
            await program.stop()
            for task in background:
                task.cancel()


def _settle_memory() -> None:
    """What exists by now lives as long as the process: never look through it for garbage again.

    What a request leaves in circles is little, so looking for it each 700 objects, as is the default,
    costs a gateway a tenth of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_EACH_OBJECTS, 20, 50)


def say(event: str, **values: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode({"event": event, **values}) + b"\n")
    sys.stdout.buffer.flush()


class GatewayProgram:
    """All parts of a gateway process, and the order in which they start and stop."""

    def __init__(
        self,
        gateway: Gateway,
        controller: Controller,
        spool: UsageSpool,
        listeners: list[Listener],
        addresses: Addresses,
        renewal: Renewal,
    ) -> None:
        self.gateway = gateway
        self.renewal = renewal
        self.addresses = addresses
        self._controller = controller
        self._spool = spool
        self._listeners = listeners

    @classmethod
    async def build(cls, home: Home, settings: Settings, stack: AsyncExitStack) -> "GatewayProgram":
        """Open everything that can fail before the first request. What is opened is closed by ``stack``."""
        clock = SystemClock()
        ids = IdSource(clock, os.urandom)
        addresses = addresses_of(settings)
        # Before anything is made: a port in use must leave no trace.
        plain = stack.enter_context(bound(settings.gateway.http_host, settings.gateway.http_port))
        secure = stack.enter_context(bound(addresses.listen_host, settings.gateway.https_port))
        ca = create_or_load_ca(home.path, clock)
        tls = ServerTls(home.path, settings.gateway, addresses, ca, clock)
        authority_file = authority_path(home.path)
        authority = create_or_load_authority(authority_file, clock, os.urandom)
        servers = Servers.at([addresses.local_bus_url], ca.pem)

        store = await open_store(home.store_url(settings))
        stack.push_async_callback(store.close)
        pepper = home.pepper(os.urandom)
        await _first_keys(home, store, ids, clock, pepper, addresses.http_url)
        spool = UsageSpool(home.spool)
        spool.open()
        stack.callback(spool.close)

        controller_bus = NatsControllerBus(servers, authority, entropy=os.urandom, randomness=random.random)
        issuer = NatsIssuer(authority, authority_file, servers, clock, randomness=random.random)
        controller = Controller(controller_bus, store, issuer, clock, ids, settings.node.credential_s)
        await controller.refresh()
        await controller_bus.start(controller)
        stack.push_async_callback(controller_bus.close)

        bus = NatsGatewayBus(ids.gateway(), servers, authority, entropy=os.urandom, randomness=random.random)
        directory = KeyDirectory(store, pepper, clock)
        registry = CollectorRegistry()
        door = Door(room_for_connections(settings.gateway.connections_max), settings.gateway.strangers_max)
        gateway = _gateway(bus, store, directory, spool, settings, clock, registry, pepper, door)
        await gateway.start()
        stack.push_async_callback(bus.close)
        enrolment = Enrolment(
            store,
            issuer,
            verify,
            lambda: Advertised(addresses.advertised_bus_urls, ca.pem),
            ids=ids,
            clock=clock,
            notify=controller.changed,
            credential_s=settings.node.credential_s,
        )
        means = Means(store, issuer, ids, clock, os.urandom, pepper, ca.pin, controller.changed)
        endpoints = [
            *client_endpoints(gateway, registry),
            *join_endpoints(enrolment, tls.authority),
            *admin_endpoints(Management(means), gateway),
        ]
        inference = Inference(
            gateway.dispatcher, directory, ids, clock, settings.gateway.total_s_max, gateway.limiter
        )
        app = App(inference, build(endpoints, directory, ids), ids)
        limits = _http_limits(settings)
        listeners = [
            Listener(app, plain, limits, door=door, new_request_id=ids.request),
            Listener(app, secure, limits, tls.context, door=door, new_request_id=ids.request),
        ]
        return cls(gateway, controller, spool, listeners, addresses, Renewal(tls.look))

    def background(self) -> list[Any]:
        """What runs beside the listeners."""
        return [
            self.gateway.run(),
            self._controller.run(),
            self._spool.run(self.gateway.store),
            self.renewal.run(),
        ]

    async def listen(self) -> None:
        """Take requests from now on."""
        for listener in self._listeners:
            await listener.start()

    async def stop(self) -> None:
        """Take no more requests, let the running ones end, write what waits."""
        for listener in self._listeners:
            await listener.stop(STOP_GRACE_S)
        await self._spool.drain(self.gateway.store)
        await self.gateway.limiter.close()
        await self.gateway.directory.note_use()


async def _first_keys(
    home: Home, store: Store, ids: IdSource, clock: SystemClock, pepper: bytes, url: str
) -> None:
    """At an installation's first start: the keys without which nobody could do anything."""
    first = await bootstrap(
        store,
        ids=ids,
        clock=clock,
        entropy=os.urandom,
        pepper=pepper,
        keep=lambda keys: home.save_admin_access(AdminAccess(url, keys.admin_secret)),
    )
    if first is not None:
        say("first_keys", user=first.user_secret)
    home.follow_address(url)


def _gateway(
    bus: NatsGatewayBus,
    store: Any,
    directory: KeyDirectory,
    spool: UsageSpool,
    settings: Settings,
    clock: SystemClock,
    registry: CollectorRegistry,
    pepper: bytes,
    door: Door,
) -> Gateway:
    """The path and what watches it."""
    limits = Limits(
        first_token_s_max=settings.gateway.first_token_s_max,
        between_tokens_s_max=settings.gateway.between_tokens_s_max,
        recovery_s_max=settings.gateway.recovery_s_max,
        attempts_max=settings.gateway.attempts_max,
        resumes_max=settings.gateway.resumes_max,
        client_stall_s_max=settings.gateway.write_stall_s_max,
        comment_each_s=settings.gateway.comment_each_s,
        hold_bytes_max=settings.gateway.hold_bytes_max,
    )
    memory = KeptMemory(settings.gateway.kept_bytes_max)
    queued = _Number()
    hedges = HedgeBudget()
    fleet = Fleet(clock)
    bookings = Bookings(
        fleet,
        clock,
        drawn,
        queue_length_max=settings.gateway.queue_length_max,
        queue_wait_s_max=settings.gateway.queue_wait_s_max,
        on_queue=queued.set,
    )
    fleet.on_change = bookings.wake
    metrics_of: list[GatewayMetrics] = []
    observer = RequestObserver(spool, lambda: metrics_of[0], hedges.request_came)
    metrics_of.append(
        GatewayMetrics(
            registry,
            in_flight=lambda: observer.in_flight,
            queued=lambda: queued.value,
            streams=lambda: observer.streams,
            connections=lambda: len(door),
            tasks=lambda: len(asyncio.all_tasks()),
            kept_bytes=lambda: memory.used_bytes,
        )
    )
    salts = TenantSalts(pepper)
    limiter = Limiter(store, bus.gateway, clock)
    dispatcher = Dispatcher(bus, bookings, clock, observer, limits, _allowed, salts.of, limiter, memory)
    watch = Watch(dispatcher, fleet, clock, limits, hedges)
    return Gateway(
        bus,
        store,
        directory,
        fleet,
        bookings,
        dispatcher,
        watch,
        limiter,
        metrics_of[0],
        clock,
        asyncio.Event(),
    )


class _Number:
    """A number that one part sets and another reads."""

    def __init__(self) -> None:
        self.value = 0

    def set(self, value: int) -> None:
        self.value = value


def drawn(count: int) -> int:
    """A number from 0 to ``count`` - 1; a tenth of randrange's time, for four draws a request."""
    return int(random.random() * count)  # noqa: S311 - no secret hangs on it


def _allowed(request: InferenceRequest, replica: ReplicaView) -> bool:
    return node_may_see(
        request.data_class,
        request.residency,
        node_data_class=replica.data_class,
        node_country=replica.country,
    )


def _http_limits(settings: Settings) -> HttpLimits:
    gateway = settings.gateway
    return HttpLimits(
        header_s_max=gateway.header_s_max,
        body_gap_s_max=gateway.body_gap_s_max,
        body_s_max=gateway.body_s_max,
        keep_alive_s_max=gateway.keep_alive_s_max,
        header_bytes_max=gateway.header_bytes_max,
        headers_max=gateway.headers_max,
        body_bytes_max=gateway.body_bytes_max,
        write_stall_s_max=gateway.write_stall_s_max,
    )
