"""The embedded nats-server as a child process."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from panal.bus.nats_config import NatsServerSettings
from panal.bus.nats_server import NatsServer
from panal.core.errors import SettingsError
from panal.core.ids import GatewayId
from panal.identity.certificates import server_certificate
from tests.support.nats_installation import LOCAL_NAMES, NatsInstallation
from tests.support.recorders import GatewayRecorder


async def test_it_starts_serves_and_stops_leaving_no_process(tmp_path: Path) -> None:
    installation = NatsInstallation(tmp_path)
    await installation.server.start()
    pid = installation.server.pid
    assert pid is not None
    command = psutil.Process(pid).cmdline()
    assert str(tmp_path) in " ".join(command)
    assert not any(word.startswith("S") and len(word) == 58 for word in command)
    await installation.server.stop()
    assert not psutil.pid_exists(pid)
    assert installation.server.pid is None
    await installation.server.stop()


async def test_its_files_are_for_its_owner_only(tmp_path: Path) -> None:
    installation = NatsInstallation(tmp_path)
    await installation.server.start()
    for folder in (installation.settings.folder, installation.settings.claims_folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    await installation.server.stop()


async def test_a_busy_port_is_one_clear_sentence(tmp_path: Path) -> None:
    installation = NatsInstallation(tmp_path)
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", installation.settings.port))
        busy.listen()
        with pytest.raises(SettingsError, match=f"127.0.0.1:{installation.settings.port}"):
            await installation.server.start()
    assert installation.server.pid is None


async def test_a_program_that_is_no_server_is_an_error(tmp_path: Path) -> None:
    installation = NatsInstallation(tmp_path)
    impostor = tmp_path / "impostor"
    impostor.write_text("#!/bin/sh\nexit 3\n")
    impostor.chmod(0o700)
    settings = NatsServerSettings(home=tmp_path, port=installation.settings.port, binary=impostor)
    with pytest.raises(SettingsError, match="did not start"):
        await NatsServer(settings, installation.authority).start()


async def test_a_program_that_never_listens_is_stopped_in_time(tmp_path: Path) -> None:
    installation = NatsInstallation(tmp_path)
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\ntrap '' TERM\nwhile true; do sleep 0.1; done\n")
    sleeper.chmod(0o700)
    settings = NatsServerSettings(
        home=tmp_path,
        port=installation.settings.port,
        binary=sleeper,
        start_timeout_s=0.5,
        stop_timeout_s=0.5,
    )
    with pytest.raises(SettingsError, match=r"within 0\.5 s"):
        await NatsServer(settings, installation.authority).start()


async def test_an_unreadable_certificate_is_told_from_the_log(tmp_path: Path) -> None:
    installation = NatsInstallation(tmp_path)
    assert installation.settings.tls is not None
    installation.settings.tls.certificate.write_text("no certificate")
    with pytest.raises(SettingsError, match="nats-server did not start"):
        await installation.server.start()


async def test_its_end_is_noticed(tmp_path: Path) -> None:
    installation = NatsInstallation(tmp_path)
    await installation.server.start()
    waiting = asyncio.create_task(installation.server.wait())
    await asyncio.sleep(0)
    installation.kill_server()
    async with asyncio.timeout(10):
        assert await waiting == -signal.SIGKILL


async def test_a_new_certificate_is_served_after_reload_and_connections_stay(tmp_path: Path) -> None:
    installation = NatsInstallation(tmp_path)
    await installation.server.start()
    heard = GatewayRecorder()
    gateway = installation.gateway(GatewayId("gw_one"))
    await gateway.start(heard)
    before = await asyncio.to_thread(_served_certificate, installation)
    started_s = int(installation.clock.utc_seconds())
    while int(installation.clock.utc_seconds()) == started_s:
        await asyncio.sleep(0.02)  # claims made now differ from those that the server has
    names = [*LOCAL_NAMES, "new.example"]
    _, fresh = server_certificate(tmp_path, "bus", installation.ca, names, installation.clock)
    assert fresh
    installation.authority.revoke(installation.new_key().public, int(installation.clock.utc_seconds()))
    installation.server.reload()
    async with asyncio.timeout(10):
        while await asyncio.to_thread(_served_certificate, installation) == before:
            await asyncio.sleep(0.02)
    assert heard.connections == [True]
    assert "[ERR] Failed to reload" not in installation.settings.log_file.read_text()
    await gateway.close()
    await installation.server.stop()


def _served_certificate(installation: NatsInstallation) -> bytes:
    context = installation.servers.tls
    assert context is not None
    address = ("127.0.0.1", installation.settings.port)
    with (
        socket.create_connection(address, timeout=5) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped,
    ):
        certificate = wrapped.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


async def test_a_client_without_tls_hears_nothing_of_the_server(tmp_path: Path) -> None:
    installation = NatsInstallation(tmp_path)
    await installation.server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", installation.settings.port)
    writer.write(b"CONNECT {}\r\nPING\r\n")
    async with asyncio.timeout(10):
        try:
            heard = await reader.read(1000)
        except ConnectionResetError:
            heard = b""
    assert b"INFO" not in heard
    writer.close()
    await installation.server.stop()


_PARENT = """
import asyncio, sys
from pathlib import Path
from tests.support.nats_installation import NatsInstallation

async def main():
    installation = NatsInstallation(Path(sys.argv[1]))
    await installation.server.start()
    print(installation.server.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
async def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _PARENT, str(tmp_path), stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert parent.stdout is not None
    async with asyncio.timeout(30):
        child = psutil.Process(int(await parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    await parent.wait()
    async with asyncio.timeout(10):
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.02)
