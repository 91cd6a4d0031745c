"""The gateway process, wired by hand: store, identity, bus, path, HTTP - and the controller beside it.

Started by ``panal up`` (or by a service) as ``panal gateway --home HOME``, and ``--process N`` where a
supervisor keeps it. It prints one JSON object a
line on its output: ``first_keys`` once in an installation's life, ``waiting`` while its store or bus is away
at the start, ``ready`` when it takes requests.
"""

import asyncio
import gc
import logging
import os
import random
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from panal.bus.authority_file import authority_path, create_or_load_authority
from panal.bus.connector import Servers
from panal.bus.issuer import NatsIssuer
from panal.bus.nats_bus import NatsControllerBus, NatsGatewayBus
from panal.bus.nkeys import verify
from panal.cli.control import Control
from panal.cli.failures import told_of
from panal.cli.front import Front, Vestibule
from panal.cli.gateway_traces import request_spans
from panal.cli.gateway_upkeep import Upkeep
from panal.cli.home import AdminAccess, Home
from panal.cli.life_line import die_with_parent, until_parent_is_gone
from panal.cli.logging_setup import log_to, reread_level
from panal.cli.patience import unless, when_there
from panal.cli.request_path import request_path
from panal.cli.signals import on_end_signals, on_reload_signal
from panal.cli.spools import Spools
from panal.core.clock import SystemClock
from panal.core.ids import IdSource
from panal.core.names import name_key
from panal.core.settings import Settings
from panal.gateway.admin_routes import admin_endpoints
from panal.gateway.app import App
from panal.gateway.endpoints import build
from panal.gateway.gateway import Gateway
from panal.gateway.inference import Inference
from panal.gateway.listener import Listener
from panal.gateway.process_routes import metrics_endpoints
from panal.gateway.public_routes import client_endpoints, join_endpoints
from panal.gateway.refused import RefusedCalls
from panal.identity.enrolment import Enrolment
from panal.identity.key_directory import KeyDirectory
from panal.identity.seams import Advertised
from panal.management import Management, Means, bootstrap
from panal.store import Store, open_store
from panal.telemetry.exchange import MetricsExchange
from panal.telemetry.logs import fields

STOP_GRACE_S = 5.0
GARBAGE_EACH_OBJECTS = 20_000


@dataclass(frozen=True, slots=True)
class Place:
    """Which of the host's gateway processes this one is, from 1. ``shared``: there are others."""

    number: int = 1
    shared: bool = False

    @property
    def program(self) -> str:
        """Its name in logs."""
        return "gateway" if self.number == 1 else f"gateway-{self.number}"


def run(
    home: Home, settings: Settings, reread: Callable[[], Settings], place: Place, *, watch_parent: bool
) -> None:
    """Run until a signal, or until the parent is gone. Raises SettingsError, StoreError, BusError.

    ``reread`` gives the settings as they are now; of these only the log's level is taken over at run time.
    """
    if watch_parent:
        die_with_parent()
    try:
        log_to(place.program, home.gateway_log(place.number), settings)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(home, settings, reread, place, watch_parent=watch_parent))
    except Exception as failure:
        error = told_of(failure)
        if error is not None:
            say("failed", message=error.message)
            raise error from None
        logging.getLogger("panal.gateway").exception("the gateway failed", extra=fields(action="failed"))
        say("failed", message=f"The gateway failed unexpectedly; see {home.gateway_log(place.number)}.")
        raise


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it exists."""
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


async def _serve(
    home: Home, settings: Settings, reread: Callable[[], Settings], place: Place, *, watch_parent: bool
) -> None:
    stopped = asyncio.Event()
    on_end_signals(stopped.set)
    async with AsyncExitStack() as stack:
        front = Front.of(home, settings, stack, shared=place.shared)
        vestibule = Vestibule(front)
        stack.push_async_callback(vestibule.close)

        def look_again() -> None:
            reread_level(reread)
            front.renewal.ask()

        on_reload_signal(look_again, stopped.set)
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(until_parent_is_gone(stopped))] if watch_parent else []
            waiting = when_there(
                lambda attempt: GatewayProgram.build(home, front, place, attempt),
                stack,
                vestibule,
                lambda words: say("waiting", message=words),
                random.random,
            )
            program = await unless(stopped, waiting)
            if program is not None:
                background += [group.create_task(task) for task in program.background()]
                await _work(program, stopped)
            for task in background:
                task.cancel()


async def _work(program: "GatewayProgram", stopped: asyncio.Event) -> None:
    _settle_memory()
    await program.listen()
    say("ready", url=program.front.addresses.http_url, secure_url=program.front.addresses.https_url)
    await stopped.wait()
    await program.stop()


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
        control: Control,
        spools: Spools,
        metrics: MetricsExchange,
        listeners: list[Listener],
        front: Front,
        upkeep: Upkeep,
    ) -> None:
        self.gateway = gateway
        self.front = front
        self._control = control
        self._spools = spools
        self._metrics = metrics
        self._listeners = listeners
        self._upkeep = upkeep

    @classmethod
    async def build(cls, home: Home, front: Front, place: Place, stack: AsyncExitStack) -> "GatewayProgram":
        """Open everything that can fail before the first request. What is opened is closed by ``stack``.

        Raises StoreError or BusError while one of them is away, SettingsError.
        """
        settings, clock, ids, ca = front.settings, front.clock, front.ids, front.ca
        addresses = front.addresses
        authority_file = authority_path(home.path)
        authority = create_or_load_authority(authority_file, clock, os.urandom)
        servers = Servers.at(list(addresses.bus_urls), ca.pem)

        store = await open_store(home.store_url(settings))
        stack.push_async_callback(store.close)
        pepper = home.pepper(os.urandom)
        spools = await Spools.opened(home, place.number, clock, stack, shared=place.shared)

        own_id = ids.gateway()
        issuer = NatsIssuer(authority, authority_file, servers, clock, randomness=random.random)
        controller_bus = NatsControllerBus(servers, authority, entropy=os.urandom, randomness=random.random)
        control = await Control.started(
            controller_bus, store, issuer, clock, ids, settings.node.credential_s, own_id, stack
        )
        bus = NatsGatewayBus(own_id, servers, authority, entropy=os.urandom, randomness=random.random)
        directory = KeyDirectory(store, pepper, clock)
        registry = CollectorRegistry()
        spans = request_spans(settings.telemetry, own_id, clock, stack)
        gateway = request_path(
            bus,
            store,
            directory,
            spools.own,
            settings,
            clock,
            registry,
            pepper,
            front.door,
            control.leads,
            spans,
        )
        metrics = MetricsExchange(
            gateway.metrics.families, home.metrics, place.number, own_id, clock.utc_seconds(), control.leads
        )
        metrics.open()
        await gateway.start()
        stack.push_async_callback(bus.close)
        # Last of what may have to wait: a key that is shown once must not be made in a try that fails.
        if await _first_keys(home, store, ids, clock, pepper, addresses.http_url):
            await gateway.refresh()
        upkeep = Upkeep(store, ids, clock, settings.gateway.usage_keep_days)
        refused = RefusedCalls(upkeep.refusals.note, directory.owner_of)
        enrolment = _enrolment(store, issuer, front, control, upkeep)
        means = Means(
            store, issuer, ids, clock, os.urandom, pepper, ca.pin, control.changed, control.controller.wake
        )
        endpoints = [
            *client_endpoints(gateway),
            *metrics_endpoints(metrics),
            *join_endpoints(enrolment, front.tls.authority),
            *admin_endpoints(Management(means), gateway, metrics),
        ]
        inference = _inference(gateway, ids, clock, settings, refused)
        app = App(inference, build(endpoints, directory, ids, refused), ids)
        listeners = front.listeners(app, front.sockets)
        return cls(gateway, control, spools, metrics, listeners, front, upkeep)

    def background(self) -> list[Any]:
        """What runs beside the listeners."""
        return [
            self.gateway.run(),
            *self._control.background(),
            *self._spools.background(self.gateway.store),
            self._metrics.run(),
            self.front.renewal.run(),
            *self._upkeep.tasks(),
        ]

    async def listen(self) -> None:
        """Take requests from now on."""
        for listener in self._listeners:
            await listener.start()

    async def stop(self) -> None:
        """Take no more requests, let the running ones end, write what waits."""
        await self._control.give_back()
        await asyncio.gather(*(listener.stop(STOP_GRACE_S) for listener in self._listeners))
        await self._spools.own.drain(self.gateway.store)
        await self.gateway.limiter.close()
        await self._upkeep.close()
        await self.gateway.directory.note_use()
        await self._metrics.publish()


def _inference(
    gateway: Gateway, ids: IdSource, clock: SystemClock, settings: Settings, refused: RefusedCalls
) -> Inference:
    return Inference(
        gateway.dispatcher,
        gateway.directory,
        ids,
        clock,
        settings.gateway.total_s_max,
        gateway.limiter,
        gateway.names.model_of,
        refused,
        frozenset(map(name_key, settings.gateway.tools_whole_models)),
    )


def _enrolment(store: Store, issuer: NatsIssuer, front: Front, control: Control, upkeep: Upkeep) -> Enrolment:
    return Enrolment(
        store,
        issuer,
        verify,
        lambda: Advertised(front.addresses.advertised_bus_urls, front.ca.pem),
        ids=front.ids,
        clock=front.clock,
        notify=control.changed,
        credential_s=front.settings.node.credential_s,
        refused=upkeep.refusals.note,
    )


async def _first_keys(
    home: Home, store: Store, ids: IdSource, clock: SystemClock, pepper: bytes, url: str
) -> bool:
    """At an installation's first start: the keys without which nobody could do anything. Whether it was."""
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
    return first is not None
