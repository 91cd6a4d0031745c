"""Ports that several processes share, and strangers who would like to."""

import asyncio
import socket
from collections import Counter

import pytest

from panal.core.errors import SettingsError
from panal.gateway.sockets import SHARED, bound, reserved
from tests.support.installation import free_ports

pytestmark = pytest.mark.skipif(not SHARED, reason="this system does not spread connections over processes")


async def test_connections_are_spread_over_those_that_listen_and_none_comes_to_who_holds_the_port() -> None:
    [port] = free_ports(1)
    came: Counter[int] = Counter()

    async def listen(number: int) -> asyncio.Server:
        def heard(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came[number] += 1
            writer.close()

        return await asyncio.start_server(heard, sock=bound("127.0.0.1", port, shared=True))

    with reserved("127.0.0.1", port):
        servers = [await listen(1), await listen(2)]
        for _ in range(200):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""
            writer.close()
        assert came[1] + came[2] == 200
        assert min(came[1], came[2]) > 20
        servers[0].close()
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""
            writer.close()
        servers[1].close()


@pytest.mark.parametrize("theirs_is_shared", [False, True])
def test_a_port_on_which_somebody_listens_is_refused(theirs_is_shared: bool) -> None:
    """Also where that somebody would share it: it could be another installation of the same user."""
    with socket.socket() as theirs:
        if theirs_is_shared:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        theirs.bind(("127.0.0.1", 0))
        theirs.listen()
        with pytest.raises(SettingsError, match="Cannot listen"):
            reserved("127.0.0.1", theirs.getsockname()[1])
