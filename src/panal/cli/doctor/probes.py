"""Looks at this machine and changes nothing. Every look has a time limit and none of them raises."""

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from panal.cli.addresses import Addresses, addresses_of
from panal.cli.doctor import machine, reachability
from panal.cli.doctor.facts import Facts, NodeFact, StoreFact
from panal.cli.home import Home
from panal.core.clock import SystemClock
from panal.core.errors import PanalError, SettingsError
from panal.core.gpus import GpuReading
from panal.core.nodes import NodeClass
from panal.core.proxies import STRAIGHT, proxies_of
from panal.core.settings import Settings, check
from panal.node.enrolled import EnrolledNode, load_enrolled


async def probe(home: Home, config: Path | None, environment: Mapping[str, str]) -> Facts:
    """All facts of this machine and of the installation or node in ``home``."""
    begun = (time.monotonic(), SystemClock().utc_seconds())
    file = config or (home.settings_file if home.settings_file.exists() else None)
    faults = check(file, environment)
    settings = Settings() if faults else home.settings(config, environment)
    try:
        addresses = addresses_of(settings)
    except SettingsError as error:
        faults.append(error.message)
        settings, addresses = Settings(), addresses_of(Settings())
    try:
        enrolled = load_enrolled(home.agent)
    except SettingsError as error:
        faults.append(error.message)
        enrolled = None
    only_node = enrolled is not None and not home.admin_file.exists()
    secrets, readable = machine.secrets_of(home)
    nats_version, nats_problem = machine.nats_version(settings.bus.nats_server)
    engine, engine_problem = await asyncio.to_thread(machine.engine, settings.node.engine, environment)
    gpus = await _gpus()
    facts = Facts(
        settings_faults=tuple(faults),
        python=(sys.version_info.major, sys.version_info.minor),
        libraries=machine.libraries(),
        nats_version=nats_version,
        nats_problem=nats_problem,
        ports=() if only_node else machine.ports(home, settings, addresses),
        certificates=machine.certificates(home),
        proxy_variables=machine.proxy_variables(environment),
        engine=engine,
        engine_problem=engine_problem,
        disks=machine.disks(home, environment),
        secrets=secrets,
        readable_secrets=readable,
        gpus=gpus.gpus,
        gpu_problem=gpus.problem,
        node=_node(home, enrolled, environment),
        processes=None if only_node else machine.processes(home, settings),
    )
    facts = await _network(facts, home, settings, addresses, enrolled, environment)
    now = (time.monotonic(), SystemClock().utc_seconds())
    return replace(facts, clock_jump_s=(now[1] - begun[1]) - (now[0] - begun[0]))


async def _gpus() -> GpuReading:
    """One look at the drivers, in a thread of its own since they may hang."""
    from panal.node.hardware.gpu_build import gpu_readers
    from panal.node.hardware.gpu_reading import GpuProbe

    probe = GpuProbe(gpu_readers(), SystemClock(), deadline_s=5.0)
    try:
        return await probe.read()
    finally:
        probe.close()


async def _network(
    facts: Facts,
    home: Home,
    settings: Settings,
    addresses: Addresses,
    enrolled: EnrolledNode | None,
    environment: Mapping[str, str],
) -> Facts:
    resolved, unresolved = await reachability.names(settings.gateway.advertise, addresses)
    facts = replace(facts, resolved_names=resolved, unresolved_names=unresolved)
    is_installation = home.admin_file.exists()
    proxies = STRAIGHT
    if is_installation:
        facts = replace(facts, store=await _store(home.store_url(settings)))
        url, ca_pem = addresses.http_url, ""
        bus = reachability.bus_of_installation(home, addresses)
    elif enrolled is not None:
        url, ca_pem = enrolled.url, enrolled.ca_pem
        proxies = proxies_of(settings.node.proxy, settings.node.no_proxy, environment)
        bus = reachability.bus_of_node(enrolled, proxies)
    else:
        return facts
    problem, ahead_s = await asyncio.to_thread(reachability.gateway, url, ca_pem, proxies)
    facts = replace(facts, proxy_used=reachability.proxy_used(url, proxies))
    return replace(
        facts, gateway_url=url, gateway_problem=problem, clock_ahead_s=ahead_s, bus_problem=await bus
    )


async def _store(url: str) -> StoreFact:
    from panal.store.inspection import inspect_store

    try:
        state = await inspect_store(url)
    except PanalError as error:
        return StoreFact(kind="", problem=error.message)
    return StoreFact(state.kind, state.revision or "", state.newest, state.known)


def _node(home: Home, enrolled: EnrolledNode | None, environment: Mapping[str, str]) -> NodeFact | None:
    if enrolled is None:
        return None
    from panal.bus.credentials import life_left_s
    from panal.node.desk import Desk
    from panal.node.hardware.idle import Unknown, sensor_for

    clock = SystemClock()
    node_class = NodeClass(enrolled.node_class)
    desk = Desk(home.agent, clock)
    status = desk.status()
    problem = ""
    if node_class.owned:
        problem = status.status.problem if status.fresh and status.status is not None else ""
        if not status.fresh:
            sensor = sensor_for(node_class, sys.platform, environment, clock)
            seen = sensor.read()
            sensor.close()
            problem = seen.reason if isinstance(seen, Unknown) else ""
    return NodeFact(
        name=enrolled.name,
        node_class=enrolled.node_class,
        agent_runs=status.fresh,
        paused=desk.paused_until_utc_s() is not None,
        credential_left_s=life_left_s(enrolled.credential, clock),
        sensor_problem=problem,
    )
