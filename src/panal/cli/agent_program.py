"""The agent process: membership from disk, an engine, the bus, the owner - and nothing of the command line.

Neither typer nor rich nor a database is imported here, so that a desk carries a small program.
"""

import argparse
import asyncio
import logging
import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from panal import __version__
from panal.bus import back_off
from panal.bus.connector import Servers
from panal.bus.credentials import life_left_s
from panal.bus.nats_bus import NatsNodeBus
from panal.bus.nkeys import SigningKey
from panal.cli.failures import told_of
from panal.cli.life_line import die_with_parent, until_parent_is_gone
from panal.cli.logging_setup import log_to, reread_level
from panal.cli.signals import on_end_signals, on_reload_signal
from panal.core.clock import SystemClock
from panal.core.errors import BusError, NotAllowed, SettingsError
from panal.core.ids import IdSource, NodeId
from panal.core.nodes import NodeClass
from panal.core.proxies import Proxies, proxies_of
from panal.core.settings import Settings, load
from panal.node.agent import Agent, Ending
from panal.node.attempt_spans import AttemptSpans
from panal.node.engines.build import EngineWish, build_engine
from panal.node.engines.embedded import embedded_uses_gpu
from panal.node.engines.leftovers import end_leftovers
from panal.node.enrolled import EnrolledNode, load_enrolled, save_enrolled
from panal.node.gpus import NodeGpus
from panal.node.hardware.build_watch import Machine, build_watch
from panal.node.hardware.gpu_build import node_gpus
from panal.node.hardware.memory import EngineMemory
from panal.node.hardware.owner_gpu import OwnerGpu
from panal.node.hardware.owner_watch import OwnerWatch
from panal.node.joining import fresh_credential
from panal.node.settings import AgentSettings
from panal.node.single import only_one_agent
from panal.node.waking import told_macs
from panal.node.weights import cache_folder
from panal.telemetry.logs import fields
from panal.telemetry.tracing import span_export

RETRY_S_MAX = 10.0
APPROVAL_EACH_S = 5.0
NICE_TO_OWNERS = 19
"""The engine's priority on a machine with an owner: everything else comes first."""


def main(arguments: list[str]) -> None:
    """Run the agent until a signal. Raises PanalError with a sentence for a person."""
    options = _options(arguments)
    home: Path = options.home.expanduser().absolute()
    if options.watch_parent:
        die_with_parent()
    try:
        _run(home, options)
    except Exception as failure:
        error = told_of(failure)
        if error is None:
            words = fields(action="agent_failed")
            logging.getLogger("panal.node").exception("the agent failed", extra=words)
            _say("failed", message=f"The agent failed unexpectedly; see {home / 'logs' / 'agent.log'}.")
            raise
        if logging.getLogger().hasHandlers():  # as a service it has no screen
            words = fields(action="agent_ended")
            logging.getLogger("panal.node").error("the agent ends: %s", error.message, extra=words)
        # Neither of the two goes away by starting again.
        _say("failed", message=error.message, final=isinstance(error, NotAllowed | SettingsError))
        raise error from None


def _run(home: Path, options: Any) -> None:
    settings = _with_options(load(options.config, os.environ), options)
    enrolled = load_enrolled(home)
    if enrolled is None:
        raise SettingsError(f"This machine has not joined ({home}): panal join URL --token TOKEN")
    log_to("agent", home / "logs" / "agent.log", settings)
    with only_one_agent(home), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(AgentProgram(home, enrolled, settings, options).run())


class AgentProgram:
    """Brings the agent up again with a fresh credential when the bus will not have the old one."""

    def __init__(self, home: Path, enrolled: EnrolledNode, settings: Settings, options: Any) -> None:
        self._home = home
        self._enrolled = enrolled
        self._settings = settings
        self._options = options
        self._clock = SystemClock()
        self._stopped = asyncio.Event()
        self._agent: Agent | None = None
        self._export = span_export(
            settings.telemetry, settings.telemetry.agent_service, enrolled.node, __version__
        )

    async def run(self) -> None:
        """Until a signal. Raises SettingsError or NotAllowed when this node may not go on."""
        if self._export is not None:
            self._export.start()
        try:
            await self._until_stopped()
        finally:
            if self._export is not None:
                await asyncio.to_thread(self._export.close)

    async def _until_stopped(self) -> None:
        on_end_signals(self._stopped.set)
        on_reload_signal(lambda: reread_level(self._reread), self._stopped.set)
        async with asyncio.TaskGroup() as group:
            side = [group.create_task(self._stop_agent())]
            if self._options.watch_parent:
                side.append(group.create_task(until_parent_is_gone(self._stopped)))
            failures = 0
            while not self._stopped.is_set():
                try:
                    await self._serve()
                    failures = 0
                except BusError as error:
                    failures += 1
                    pause_s = back_off.pause_s(failures + 3, random.random(), RETRY_S_MAX)  # noqa: S311
                    print(f"panal agent: {error.message} Trying again.", file=sys.stderr, flush=True)
                    words = fields(action="bus_unreachable", failures=failures)
                    logging.getLogger("panal.node").warning("the bus: %s", error.message, extra=words)
                    await self._pause(pause_s)
            for task in side:
                task.cancel()

    def _reread(self) -> Settings:
        return load(self._options.config, os.environ)

    async def _serve(self) -> None:
        """One life of the agent on one credential."""
        enrolled = await self._credentialed()
        if self._stopped.is_set():
            return
        node_class = NodeClass(enrolled.node_class)
        bus = NatsNodeBus(
            Servers.at(enrolled.bus_urls, enrolled.ca_pem, self._proxies()),
            SigningKey.from_seed(enrolled.key_seed),
            enrolled.credential,
            randomness=random.random,
        )
        ids, export = IdSource(self._clock, os.urandom), self._export
        wish = _wish(self._home, self._settings, self._options, node_class)
        gpus = self._node_gpus(wish)
        # Nobody sits at a dedicated machine: what its GPUs hold beside our engine is their usual.
        gpus.watch.let_learn(not node_class.owned)
        await asyncio.to_thread(self._end_leftovers, wish.home)
        self._agent = agent = Agent(
            AgentSettings(
                node=NodeId(enrolled.node),
                agent_version=__version__,
                credential_s=life_left_s(enrolled.credential, self._clock),
                wake_macs=told_macs(self._settings.node.wake),
            ),
            bus,
            build_engine(wish),
            self._owner_watch(node_class, gpus),
            self._clock,
            ids,
            keep_credential=self._keep_credential,
            traced=None if export is None else AttemptSpans(export.put, self._clock, enrolled.node).over,
            gpus=gpus,
        )
        _say("running", node=enrolled.node, name=enrolled.name)
        ending = await agent.run()
        self._agent = None
        if ending is Ending.REFUSED_INSTANCE:
            raise SettingsError(agent.ending_reason)
        if ending is Ending.CREDENTIAL_REFUSED:
            self._enrolled = msgspec.structs.replace(self._enrolled, credential="")
        elif not self._stopped.is_set():
            self._stopped.set()

    def _node_gpus(self, wish: EngineWish) -> NodeGpus:
        """The GPUs of this machine, or of the file that stands in for them."""
        return node_gpus(
            self._home,
            self._settings.node,
            self._clock,
            fake_hardware=self._options.fake_hardware,
            uses_gpu=wish.kind == "embedded" and not wish.url and embedded_uses_gpu(),
        )

    def _end_leftovers(self, folder: Path) -> None:
        """Before anything else: an engine that an earlier agent left must not hold the owner's GPU."""
        ended = end_leftovers(folder)
        if ended:
            words = fields(action="leftovers_ended", pids=" ".join(map(str, ended)))
            logging.getLogger("panal.node").warning("an engine was left running; it was ended", extra=words)

    def _owner_watch(self, node_class: NodeClass, gpus: NodeGpus) -> OwnerWatch:
        """Who comes first on this machine, and how to see them."""
        machine = Machine(self._home, cache_folder(os.environ), node_class, sys.platform, os.environ)
        memory = EngineMemory(gpus.watch if gpus.uses_gpu else None)
        gpu = OwnerGpu(gpus.watch, self._clock)
        return build_watch(machine, self._settings, self._clock, memory=memory, gpu=gpu)

    async def _credentialed(self) -> EnrolledNode:
        """The node with a credential; waits for an operator's approval. Raises NotAllowed if revoked."""
        if not life_left_s(self._enrolled.credential, self._clock):
            self._enrolled = msgspec.structs.replace(self._enrolled, credential="")
        while not self._enrolled.credential and not self._stopped.is_set():
            self._enrolled = await asyncio.to_thread(
                fresh_credential, self._enrolled, self._clock, self._proxies()
            )
            save_enrolled(self._home, self._enrolled)
            if not self._enrolled.credential:
                await self._pause(APPROVAL_EACH_S)
        return self._enrolled

    def _proxies(self) -> Proxies:
        node = self._settings.node
        return proxies_of(node.proxy, node.no_proxy, os.environ)

    def _keep_credential(self, credential: str) -> None:
        self._enrolled = msgspec.structs.replace(self._enrolled, credential=credential)
        save_enrolled(self._home, self._enrolled)

    async def _stop_agent(self) -> None:
        await self._stopped.wait()
        if self._agent is not None:
            self._agent.stop()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return


def _wish(home: Path, settings: Settings, options: Any, node_class: NodeClass) -> EngineWish:
    folder = home / "engine"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return EngineWish(
        kind=settings.node.engine,
        home=folder,
        cache=cache_folder(os.environ),
        threads=settings.node.threads,
        slots=settings.node.slots,
        context_tokens=settings.node.context_tokens,
        exact=settings.node.exact,
        nice=NICE_TO_OWNERS if node_class.owned else 0,
        url=options.engine_url,
        model_digest=options.model_digest,
        api_key=os.environ.get("PANAL_ENGINE_KEY", ""),
        echo_options=tuple(options.echo_option),
        start_s_max=settings.node.start_s_max,
    )


def _with_options(settings: Settings, options: Any) -> Settings:
    if not options.engine:
        return settings
    return replace(settings, node=replace(settings.node, engine=options.engine))


def _options(arguments: list[str]) -> Any:
    parser = argparse.ArgumentParser(prog="panal agent", description="Run this machine's node.")
    parser.add_argument("--home", type=Path, default=_default_home(), help="folder of the node")
    parser.add_argument("--config", type=Path, default=None, help="settings file (TOML)")
    parser.add_argument("--engine", default="", help="embedded or echo")
    parser.add_argument("--engine-url", default="", help="OpenAI-compatible program that already runs")
    parser.add_argument("--model-digest", default="", help="digest of its weights; without it no resume")
    parser.add_argument(
        "--echo-option", action="append", default=[], help="for tests: option of the echo engine"
    )
    parser.add_argument(
        "--fake-hardware", type=Path, default=None, help="file (TOML) that describes GPUs to pretend"
    )
    parser.add_argument("--watch-parent", action="store_true", help="end when the standard input does")
    found = parser.parse_args(arguments)
    beside = found.home.expanduser().absolute().parent / "panal.toml"
    if found.config is None and beside.is_file():
        found.config = beside  # the settings of the home whose node this is
    return found


def _default_home() -> Path:
    from panal.cli.home import home_of

    return home_of(None, os.environ).agent


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


def _say(event: str, **values: Any) -> None:
    """One JSON line for the program that started us; a closed pipe is no reason to fail."""
    try:
        sys.stdout.buffer.write(msgspec.json.encode({"event": event, **values}) + b"\n")
        sys.stdout.buffer.flush()
    except (BrokenPipeError, ValueError):
        return
