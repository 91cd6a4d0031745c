"""The same bus on every event loop and transport that programs may use."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from panal.core.ids import GatewayId, NodeKey
from panal.protocol.messages import Cancel, Event, Frame
from tests.support.nats_installation import NatsInstallation
from tests.support.recorders import GatewayRecorder, NodeRecorder

ONE = GatewayId("gw_one")

Runner = Callable[[Coroutine[Any, Any, None]], None]


def _uvloop(main: Coroutine[Any, Any, None]) -> None:
    uvloop = pytest.importorskip("uvloop")
    uvloop.run(main)


def _asyncio(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


@pytest.mark.parametrize("aiofastnet", [True, False], ids=["aiofastnet", "the loop's own transport"])
@pytest.mark.parametrize("encrypted", [True, False], ids=["tls", "plain"])
@pytest.mark.parametrize("runner", [_uvloop, _asyncio], ids=["uvloop", "asyncio"])
def test_messages_cross_and_a_renewal_loses_none(
    runner: Runner, encrypted: bool, aiofastnet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not aiofastnet:
        monkeypatch.setitem(sys.modules, "aiofastnet", None)
    runner(_cross(NatsInstallation(tmp_path, encrypted=encrypted)))


async def _cross(installation: NatsInstallation) -> None:
    await installation.server.start()
    key = installation.new_key()
    gateway, node = installation.gateway(ONE), installation.node(key)
    heard_gateway, heard_node = GatewayRecorder(), NodeRecorder()
    await gateway.start(heard_gateway)
    await node.start(heard_node)
    total = 0
    for round_number in range(3):
        renewing = asyncio.create_task(node.renew(installation.credential(key, 1000 + round_number)))
        while not renewing.done():
            size = 1 + 7919 * total % 100_000
            node.send_frames(ONE, [Frame(attempt="a.1", number=total, events=[Event(data=b"x" * size)])])
            gateway.cancel(NodeKey(key.public), Cancel(attempt=f"a{total}.1", reason="x"))
            total += 1
            await asyncio.sleep(0.001)
        await renewing
    await heard_gateway.until(lambda: len(heard_gateway.frames) >= total)
    await heard_node.until(lambda: len(heard_node.messages) >= total)
    assert [frame.number for _, frame in heard_gateway.frames] == list(range(total))
    assert heard_node.messages == [Cancel(attempt=f"a{number}.1", reason="x") for number in range(total)]
    await node.close()
    await gateway.close()
    await installation.server.stop()
