"""``panal up``: a whole installation on one machine, through the same programs as a large one.

Order: model in the cache, bus, gateway with controller, a join by the way of every machine, agent.
The other way round at the end. Everything that takes more than a moment is said on the screen.
"""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console

from panal.bus.authority_file import authority_path, create_or_load_authority
from panal.bus.nats_config import NatsServerSettings, TlsFiles
from panal.bus.nats_server import NatsServer
from panal.cli.addresses import Addresses, addresses_of
from panal.cli.api_client import Api, ApiRefused
from panal.cli.chat import served_models
from panal.cli.children import Child
from panal.cli.gateways import Gateways
from panal.cli.home import Home
from panal.cli.patience import unless
from panal.cli.progress import Progress
from panal.cli.renewal import Renewal
from panal.cli.signals import on_end_signals, on_reload_signal
from panal.cli.supervision import READY_S_MAX, Ended, Part, Supervision, part_of
from panal.core.clock import SystemClock
from panal.core.errors import BusError, SettingsError
from panal.core.settings import Settings
from panal.identity.certificates import CertificateFiles, create_or_load_ca, server_certificate
from panal.node.enrolled import EnrolledNode, load_enrolled, save_enrolled
from panal.node.joining import join, this_machine
from panal.store.folder_lock import FolderLock

AGENT_STOP_S = 15.0

T = TypeVar("T")


@dataclass(frozen=True)
class UpOptions:
    """What ``panal up`` was told beside its settings. ``node`` False: gateway and bus only."""

    config: Path | None = None
    node: bool = True
    engine_arguments: tuple[str, ...] = ()
    as_json: bool = False


class Up:
    """The supervisor of one installation's programs."""

    def __init__(
        self,
        home: Home,
        settings: Settings,
        options: UpOptions,
        environment: Mapping[str, str],
        console: Console,
    ) -> None:
        self._home = home
        self._settings = settings
        self._options = options
        self._environment = environment
        self._console = console
        self._progress = Progress(Console(stderr=True) if options.as_json else console)
        self._clock = SystemClock()
        self._addresses: Addresses = addresses_of(settings)
        self._stopped = asyncio.Event()
        self._renewal = Renewal(self._look_again)
        self._gateways = Gateways(home, settings, self._common(), environment, self._progress.notice)
        self._reloaded: list[Callable[[], None]] = []
        self._first_key = ""

    async def run(self) -> None:
        """Start everything, say so, and run until a signal. Raises SettingsError."""
        on_end_signals(self._stopped.set)
        on_reload_signal(self._renewal.ask, self._stopped.set)
        begun_s = time.monotonic()
        if self._settings.bus.urls:
            raise SettingsError(
                "'bus.urls' names a bus elsewhere, but 'panal up' starts one of its own. Run 'panal gateway' "
                "on this host, or take the setting away."
            )
        self._home.make()
        lock = FolderLock(self._home.path)
        try:
            lock.take()
        except SettingsError as error:
            raise SettingsError(
                f"panal already runs in {self._home.path}. Stop it first, or give another --home."
            ) from error
        async with AsyncExitStack() as stack:
            stack.callback(lock.release)
            try:
                parts = await self._start(stack)
                self._say_ready(time.monotonic() - begun_s)
            except BaseException:
                self._show_first_key()
                raise
            given_up = await self._supervised(parts)
            with self._progress:
                self._progress.step("stopping ...")
                await stack.aclose()
        if given_up:
            raise SettingsError(given_up)

    async def _supervised(self, parts: list[Part]) -> str:
        """Until the end; the reason if something needed was given up."""
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(self._renewal.run())
            given_up = await Supervision(parts, self._clock, self._progress.notice).run(self._stopped)
            renewing.cancel()
        return given_up

    def _look_again(self) -> None:
        """The bus's certificate is renewed when it is time; the children look for themselves."""
        try:
            self._bus_certificate()
            for reload in self._reloaded:
                reload()
        except SettingsError as error:
            self._progress.notice(f"Nothing was read again: {error.message}")

    def _bus_certificate(self) -> CertificateFiles:
        home = self._home.path
        ca = create_or_load_ca(home, self._clock)
        return server_certificate(home, "bus", ca, self._addresses.names, self._clock)[0]

    # --- start ------------------------------------------------------------------------------------

    async def _start(self, stack: AsyncExitStack) -> list[Part]:
        with self._progress as progress:
            if self._gateways.problem:
                progress.notice(self._gateways.problem)
            self._gateways.reserve(self._addresses, stack)
            progress.step("starting the bus ...")
            bus = await self._start_bus()
            stack.push_async_callback(bus.stop)
            progress.step("starting the gateway ...")
            gateways = self._gateways
            stack.push_async_callback(gateways.stop)
            self._reloaded += [bus.reload, gateways.reload]
            said = await _while_running(bus, self._or_stopped(gateways.start_first()))
            self._first_key = said.get("first_keys", {}).get("user", "")
            await self._or_stopped(gateways.start_others())
            parts = [Part("bus", bus.start, lambda: _end_of_bus(bus)), *gateways.parts()]
            if self._options.node:
                progress.step("joining this machine ...")
                await asyncio.to_thread(self._join)
                progress.step("starting the engine ...")
                agent = self._child(
                    "agent",
                    [
                        "agent",
                        "--watch-parent",
                        "--home",
                        str(self._home.agent),
                        *self._config(),
                        *self._options.engine_arguments,
                    ],
                )
                stack.push_async_callback(agent.stop, AGENT_STOP_S)
                self._reloaded.append(agent.reload)
                await agent.start()
                await self._or_stopped(agent.until("running"))
                await self._or_stopped(self._ready_or_failed(agent))
                parts.append(part_of(agent, "running", needed=False))
        return parts

    async def _start_bus(self) -> NatsServer:
        home, addresses = self._home.path, self._addresses
        files = self._bus_certificate()
        authority = create_or_load_authority(authority_path(home), self._clock, os.urandom)
        given = self._settings.bus.nats_server
        server = NatsServer(
            NatsServerSettings(
                home=home,
                host=addresses.listen_host,
                port=self._settings.bus.nats_port,
                tls=TlsFiles(files.certificate, files.key, files.ca),
                binary=Path(given) if given else None,
            ),
            authority,
        )
        await server.start()
        return server

    def _join(self) -> None:
        """Make this machine a node, once. It is dedicated: who starts 'up' wants it to serve."""
        known = load_enrolled(self._home.agent)
        if known is not None:
            self._follow_addresses(known)
            return
        access = self._home.admin_access()
        if access is None:
            raise SettingsError(f"{self._home.admin_file} is missing, so this machine cannot join by itself.")
        api = Api(self._addresses.http_url, access.key)
        made = api.post(
            "/api/v1/tokens", {"node_class": "dedicated", "data_class": "restricted", "life_s": 600}
        )
        enrolled = join(self._addresses.https_url, made["token"], this_machine(), self._clock, os.urandom)
        save_enrolled(self._home.agent, enrolled)

    def _follow_addresses(self, known: EnrolledNode) -> None:
        """The installation may listen elsewhere than when this machine joined it."""
        bus_urls = list(self._addresses.advertised_bus_urls)
        now = msgspec.structs.replace(known, url=self._addresses.https_url, bus_urls=bus_urls)
        if now != known:
            save_enrolled(self._home.agent, now)

    async def _ready_or_failed(self, agent: Child) -> None:
        """Raises SettingsError with the agent's own words when it gives up before."""
        waiting = asyncio.get_running_loop().create_task(self._until_ready())
        failing = asyncio.get_running_loop().create_task(agent.event())
        try:
            done, _ = await asyncio.wait({waiting, failing}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (waiting, failing):
                task.cancel()
            await asyncio.gather(waiting, failing, return_exceptions=True)

    async def _until_ready(self) -> None:
        """Raises SettingsError when no model is served in time."""
        api = Api(self._addresses.http_url, "")
        try:
            async with asyncio.timeout(READY_S_MAX):
                while True:
                    try:
                        await asyncio.to_thread(api.get, "/ready")
                    except (ApiRefused, BusError):
                        await asyncio.sleep(0.1)
                    else:
                        return
        except TimeoutError:
            raise SettingsError(
                f"No model is served after {READY_S_MAX:.0f} s; see {self._home.agent / 'logs'}."
            ) from None

    async def _or_stopped(self, work: Any) -> Any:
        """What ``work`` gives, unless somebody ends the start before. Raises SettingsError then."""
        working = asyncio.ensure_future(work)  # noqa: TID251 - awaited right here
        stopping = asyncio.ensure_future(self._stopped.wait())  # noqa: TID251
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise SettingsError("Stopped before it was ready.")
            return working.result()
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)

    # --- words ------------------------------------------------------------------------------------

    def _child(self, name: str, arguments: list[str]) -> Child:
        return Child(name, arguments, self._environment)

    def _common(self) -> list[str]:
        return ["--home", str(self._home.path), *self._config()]

    def _config(self) -> list[str]:
        file = self._options.config or self._home.settings_file
        return ["--config", str(file)] if file.exists() else []

    def _show_first_key(self) -> None:
        """The start failed after the first key was made: it must not be lost, since it is shown once."""
        if not self._first_key:
            return
        if self._options.as_json:
            self._console.print_json(data={"api_key": self._first_key})
        else:
            self._progress.notice(f"API key    {self._first_key}   (made in this start, shown once)")

    def _say_ready(self, seconds: float) -> None:
        url = self._addresses.http_url
        models = self._models()
        if self._options.as_json:
            self._console.print_json(
                data={
                    "endpoint": f"{url}/v1",
                    "secure_endpoint": f"{self._addresses.https_url}/v1",
                    "models": models,
                    "api_key": self._first_key or None,
                    "ready_s": round(seconds, 2),
                }
            )
            return
        key = self._first_key or "$PANAL_API_KEY"
        model = models[0] if models else "MODEL"
        lines = [
            "",
            f"panal is ready ({seconds:.1f} s)",
            "",
            f"  endpoint   {url}/v1",
            f"  models     {', '.join(models) or 'none yet'}",
        ]
        if self._first_key:
            lines.append(f"  API key    {self._first_key}   (shown once; 'panal keys create' makes more)")
        lines += [
            f"  home       {self._home.path}",
            "",
            f'  curl {url}/v1/chat/completions -H "Authorization: Bearer {key}" \\',
            '    -H "Content-Type: application/json" \\',
            f'    -d \'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}\'',
            "",
            "  Ctrl-C stops everything in order.",
        ]
        self._console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)

    def _models(self) -> list[str]:
        access = self._home.admin_access()
        if access is None:
            return []
        return served_models(Api(self._addresses.http_url, access.key))


async def _while_running(bus: NatsServer, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` gives, which may take long. Raises SettingsError when the bus ends before."""
    ended = asyncio.Event()

    async def watch() -> None:
        await bus.wait()
        ended.set()

    watching = asyncio.get_running_loop().create_task(watch())
    try:
        found = await unless(ended, work)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    if found is None:
        raise SettingsError("The bus has ended; see nats/server.log in the home.")
    return found


async def _end_of_bus(bus: NatsServer) -> Ended:
    return Ended(await bus.wait())
