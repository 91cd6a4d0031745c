"""The command line put together: programs, administration, and what people ask for every day."""

import asyncio
import contextlib
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from panal import __version__
from panal.cli import (
    admin_commands,
    backup_commands,
    config_commands,
    desk_commands,
    host_commands,
    limit_commands,
    model_commands,
    service_commands,
    usage_commands,
)
from panal.cli.access import api_of
from panal.cli.admin_commands import HomeOption, JsonOption, UrlOption
from panal.cli.api_client import ApiRefused
from panal.cli.home import home_of
from panal.cli.output import show_json
from panal.core.errors import NotAllowed
from panal.core.settings import Settings

ProcessesOption = Annotated[
    int, typer.Option(min=0, max=64, help="Gateway processes on this host; 0: as the settings say")
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML)")]


def application() -> typer.Typer:
    """All commands."""
    app = typer.Typer(
        name="panal",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Turns the GPUs that an organisation already owns into one private AI-inference service.",
    )
    app.command("up")(up)
    app.command("join")(join)
    app.command("agent", add_help_option=False, help="Run this machine's node (see panal agent --help)")(
        agent
    )
    app.command("gateway")(gateway)
    app.command("chat")(chat)
    app.command("status")(status)
    app.command("demo")(demo)
    app.command("doctor")(doctor)
    app.command("support-bundle")(support_bundle)
    app.command("backup")(backup_commands.backup)
    app.command("restore")(backup_commands.restore)
    app.command("version")(version)
    app.add_typer(admin_commands.tokens, name="tokens")
    app.add_typer(admin_commands.nodes, name="nodes")
    app.add_typer(admin_commands.keys, name="keys")
    app.add_typer(limit_commands.limits, name="limits")
    app.add_typer(model_commands.models, name="models")
    app.add_typer(usage_commands.usage, name="usage")
    app.add_typer(admin_commands.audit, name="audit")
    app.add_typer(config_commands.config, name="config")
    app.add_typer(desk_commands.desk, name="desk")
    app.add_typer(service_commands.service, name="service")
    app.add_typer(host_commands.host, name="host")
    return app


def up(
    home: HomeOption = None,
    config: ConfigOption = None,
    listen: Annotated[
        str, typer.Option(help="Address for HTTPS and the bus, so that machines can join")
    ] = "",
    node: Annotated[bool, typer.Option(help="Serve on this machine too")] = True,
    engine: Annotated[str, typer.Option(help="embedded, echo, or the URL of a running engine")] = "",
    processes: ProcessesOption = 0,
    fake_hardware: Annotated[
        Path | None, typer.Option("--fake-hardware", help="File (TOML) that describes GPUs to pretend")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run everything on this machine: bus, gateway, controller, and a node with a small model."""
    from panal.cli.model_cache import ensure_model
    from panal.cli.up import Up, UpOptions

    environment = dict(os.environ)
    if listen:
        environment["PANAL_GATEWAY__LISTEN"] = listen
    if processes:
        environment["PANAL_GATEWAY__PROCESSES"] = str(processes)
    engine_url = engine if "://" in engine else ""
    if engine:
        environment["PANAL_NODE__ENGINE"] = "attached" if engine_url else engine
    found = home_of(home, environment)
    settings = found.settings(config, environment)
    console = Console()
    if node and settings.node.engine == "embedded":
        ensure_model(environment, Console(stderr=as_json))
    attach = ("--engine-url", engine_url) if engine_url else ()
    if fake_hardware is not None:
        attach = (*attach, "--fake-hardware", str(fake_hardware.absolute()))
    options = UpOptions(config=config, node=node, engine_arguments=attach, as_json=as_json)
    asyncio.run(Up(found, settings, options, environment, console).run())


def gateway(
    home: HomeOption = None,
    config: ConfigOption = None,
    processes: ProcessesOption = 0,
    process: Annotated[int, typer.Option(help="Number of this process", hidden=True)] = 0,
    watch_parent: Annotated[
        bool, typer.Option("--watch-parent", help="End with the parent", hidden=True)
    ] = False,
) -> None:
    """The gateway with the controller, on a host where the bus runs or can be reached."""
    found = home_of(home, os.environ)
    environment = dict(os.environ)
    if processes:
        environment["PANAL_GATEWAY__PROCESSES"] = str(processes)

    def reread() -> Settings:
        return found.settings(config, environment)

    settings = reread()
    if not process and settings.gateway.processes > 1:
        from panal.cli.gateway_service import serve

        asyncio.run(serve(found, settings, config, environment, Console(stderr=True)))
        return
    from panal.cli.gateway_program import Place, run
    from panal.cli.gateways import processes_of
    from panal.telemetry.exchange import forget_counts

    if not process:
        forget_counts(found.metrics)
    place = Place(process or 1, shared=processes_of(settings) > 1)
    run(found, settings, reread, place, watch_parent=watch_parent)


def join(
    url: Annotated[str, typer.Argument(help="Gateway, such as https://gpu.example.com:7443")],
    token: Annotated[str, typer.Option(help="Join token from 'panal tokens create'")],
    home: HomeOption = None,
    config: ConfigOption = None,
    engine: Annotated[str, typer.Option(help="embedded or echo")] = "",
    engine_url: Annotated[str, typer.Option(help="OpenAI-compatible program that already runs")] = "",
    model_digest: Annotated[str, typer.Option(help="Digest of its weights; without it no resume")] = "",
    run: Annotated[bool, typer.Option(help="Go on as the node's agent")] = True,
    as_json: JsonOption = False,
) -> None:
    """Make this machine a node, and serve."""
    from panal.core.clock import SystemClock
    from panal.core.errors import SettingsError
    from panal.core.proxies import proxies_of
    from panal.node import joining
    from panal.node.enrolled import load_enrolled, save_enrolled

    found = home_of(home, os.environ)
    folder = found.agent
    if load_enrolled(folder) is not None:
        raise SettingsError(
            f"This machine is a node already, in {folder}. 'panal agent' runs it; remove the folder to "
            "join anew."
        )
    node = found.settings(config, os.environ).node
    proxies = proxies_of(node.proxy, node.no_proxy, os.environ)
    enrolled = joining.join(url, token, joining.this_machine(), SystemClock(), os.urandom, proxies)
    save_enrolled(folder, enrolled)
    if as_json:
        show_json({"node": enrolled.node, "name": enrolled.name, "class": enrolled.node_class})
    else:
        waits = (
            "" if enrolled.credential else "; an admin must approve it: panal nodes approve " + enrolled.name
        )
        print(f"joined as {enrolled.name} ({enrolled.node}), a {enrolled.node_class}{waits}", flush=True)
    if run:
        arguments = ["agent", "--home", str(folder)]
        for option, value in (
            ("--engine", engine),
            ("--engine-url", engine_url),
            ("--model-digest", model_digest),
            ("--config", str(config.absolute()) if config else ""),
        ):
            arguments += [option, value] if value else []
        # The agent is a program of its own, so that nothing of this command stays in its memory.
        os.execv(sys.executable, [sys.executable, "-m", "panal", *arguments])  # noqa: S606


def agent() -> None:
    """Never reached: panal.cli.main gives 'agent' to the agent's own program."""
    raise AssertionError


def chat(
    words: Annotated[str, typer.Argument(help="What to say")],
    model: Annotated[str, typer.Option(help="Model; the first one if not given")] = "",
    max_tokens: Annotated[int, typer.Option(help="Longest answer in tokens")] = 512,
    home: HomeOption = None,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask a model and see the answer come, and which node speaks."""
    from panal.cli.chat import Listener, first_model
    from panal.cli.chat import chat as ask

    api = api_of(home, url)
    body = {
        "model": model or first_model(api),
        "messages": [{"role": "user", "content": words}],
        "max_tokens": max_tokens,
    }
    console = Console(highlight=False, soft_wrap=True)

    def on_text(text: str) -> None:
        if not as_json:
            console.print(text, end="", markup=False)

    def on_node(name: str, attempt: int) -> None:
        if not as_json:
            console.print(f"[dim]{'' if attempt == 1 else chr(10)}\\[{name}][/] ", end="")

    told = ask(api, body, Listener(on_text, on_node))
    if as_json:
        show_json({"text": told.text, "nodes": told.nodes, "finish": told.finish, "usage": told.usage})
    else:
        console.print()


def status(home: HomeOption = None, url: UrlOption = "", as_json: JsonOption = False) -> None:
    """What runs, and what it is doing."""
    from panal.cli.output import processes_line

    api = api_of(home, url)
    fleet = api.get("/api/v1/fleet")
    with contextlib.suppress(NotAllowed, ApiRefused):  # a user's key may not ask
        fleet |= api.get("/api/v1/processes")
    if as_json:
        show_json(fleet)
        return
    working = [node for node in fleet["nodes"] if node["liveness"] == "live"]
    print(f"gateway   {api.url}")
    if "processes" in fleet:
        print(processes_line(fleet["processes"]))
    print(f"models    {', '.join(fleet['models']) or 'none yet'}")
    print(f"nodes     {len(working)} of {len(fleet['nodes'])} heard")
    for node in fleet["nodes"]:
        reason = f" ({node['reason']})" if node["reason"] else ""
        print(f"  {node['name']:<20} {node['node_class']:<12} {node['liveness']:<6} {node['state']}{reason}")
        for replica in node["replicas"]:
            health = "" if replica["healthy"] else "  not healthy"
            print(
                f"    {replica['model']} on {replica['engine']}: "
                f"{replica['running']} of {replica['slots']} running{health}"
            )


def demo(
    what: Annotated[str, typer.Argument(help="failover")] = "failover",
    as_json: JsonOption = False,
) -> None:
    """See it work: 'panal demo failover' kills a node in the middle of an answer."""
    from panal.cli.demo import failover
    from panal.core.errors import BadRequest

    if what != "failover":
        raise BadRequest("There is one demo: panal demo failover")
    asyncio.run(failover(as_json=as_json))


def doctor(home: HomeOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Look whether this machine is fit for panal, and say what to do where it is not."""
    from panal.cli.doctor.judgement import judge
    from panal.cli.doctor.probes import probe

    findings = judge(asyncio.run(probe(home_of(home, os.environ), config, os.environ)))
    if as_json:
        show_json([asdict(each) for each in findings])
    else:
        for each in findings:
            print(f"{each.level:<4}  {each.what}{': ' + each.todo if each.todo else ''}")
    if any(each.level == "bad" for each in findings):
        raise typer.Exit(1)


def support_bundle(
    file: Annotated[Path, typer.Argument(help="The file to write")],
    home: HomeOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write what helps others to see what is wrong into one small file, without any secret or prompt."""
    from panal.cli.doctor.judgement import judge
    from panal.cli.doctor.probes import probe
    from panal.cli.support_bundle import bundle
    from panal.core.clock import SystemClock
    from panal.core.settings import check

    found = home_of(home, os.environ)
    used = config or (found.settings_file if found.settings_file.exists() else None)
    settings = Settings() if check(used, os.environ) else found.settings(config, os.environ)
    findings = judge(asyncio.run(probe(found, config, os.environ)))
    api = api_of(home, "") if found.admin_file.exists() or os.environ.get("PANAL_API_KEY") else None
    names = bundle(found, settings, os.environ, findings, api, file, SystemClock())
    if as_json:
        show_json({"file": str(file), "parts": names})
    else:
        print(f"written: {file} ({', '.join(names)})")


def version(as_json: JsonOption = False) -> None:
    """The version of panal."""
    if as_json:
        show_json({"version": __version__})
    else:
        print(__version__)
