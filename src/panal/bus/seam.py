"""The bus as the programs see it: attempts, frames, acknowledgements, heartbeats, instructions.

Not publish and subscribe: a direct data path could replace the data half without a change above.
Sending never blocks and never waits: a message goes to the transport's buffer. A send that cannot
be buffered (not connected, or over the buffer's limit) raises BusError. Delivery is at most once, in
order per sender and receiver while the connection lasts; whoever needs more checks frame numbers.
Handlers are plain functions called from the receiving callback: they must not block and not raise.
"""

from collections.abc import Sequence
from typing import Protocol

from panal.core.ids import GatewayId, NodeKey
from panal.protocol.messages import (
    Acknowledge,
    BodyPart,
    Cancel,
    Frame,
    Heartbeat,
    Instruction,
    Present,
    Report,
    RunAttempt,
)


class GatewayHandlers(Protocol):
    """What a gateway does with what arrives. ``key`` is proved by the server, not by the message."""

    def on_frames(self, key: NodeKey, frames: Sequence[Frame]) -> None: ...

    def on_heartbeat(self, key: NodeKey, heartbeat: Heartbeat) -> None: ...

    def on_absent(self, key: NodeKey) -> None:
        """Nobody heard an attempt or a probe sent to that node: it is not on the bus at this moment."""
        ...

    def on_fleet_changed(self) -> None: ...

    def on_connection(self, connected: bool) -> None: ...


class GatewayBus(Protocol):
    """A gateway's side."""

    gateway: GatewayId

    async def start(self, handlers: GatewayHandlers) -> None:
        """Connect and subscribe. Raises BusError when the bus cannot be reached in time."""
        ...

    def run(self, key: NodeKey, attempt: RunAttempt, parts: Sequence[BodyPart] = ()) -> None: ...

    def acknowledge(self, key: NodeKey, acknowledgement: Acknowledge) -> None: ...

    def cancel(self, key: NodeKey, cancel: Cancel) -> None: ...

    def probe(self, key: NodeKey) -> None:
        """Ask whether the node is on the bus; only its absence is answered. Nothing while not connected."""
        ...

    def present(self, key: NodeKey, present: Present) -> None:
        """Say that this gateway lives, and which attempts it follows on that node."""
        ...

    @property
    def connected(self) -> bool:
        """Whether the bus answers; what is sent meanwhile may still arrive later."""
        ...

    async def flush(self, timeout_s: float) -> None:
        """Return when all that the bus had for us before this call was handled. Raises BusError."""
        ...

    async def close(self) -> None: ...


class ControllerHandlers(Protocol):
    def on_heartbeat(self, key: NodeKey, heartbeat: Heartbeat) -> None: ...

    def on_report(self, key: NodeKey, report: Report) -> None: ...


class ControllerBus(Protocol):
    """The controller's side."""

    async def start(self, handlers: ControllerHandlers) -> None: ...

    def instruct(self, key: NodeKey, instruction: Instruction) -> None: ...

    def fleet_changed(self) -> None:
        """Tell every gateway to read nodes and keys again."""
        ...

    async def close(self) -> None: ...


class NodeHandlers(Protocol):
    def on_run(self, attempt: RunAttempt) -> None: ...

    def on_part(self, part: BodyPart) -> None: ...

    def on_acknowledge(self, acknowledgement: Acknowledge) -> None: ...

    def on_cancel(self, cancel: Cancel) -> None: ...

    def on_present(self, present: Present) -> None: ...

    def on_instruction(self, instruction: Instruction) -> None: ...

    def on_connection(self, connected: bool) -> None: ...

    def on_refused(self, reason: str) -> None:
        """The server will not have this credential any more (revoked or expired)."""
        ...


class NodeBus(Protocol):
    """A node's side. Frames and heartbeats use separate connections."""

    async def start(self, handlers: NodeHandlers) -> None: ...

    def send_frames(self, gateway: GatewayId, frames: Sequence[Frame]) -> None: ...

    def heartbeat(self, heartbeat: Heartbeat) -> None: ...

    def report(self, report: Report) -> None: ...

    @property
    def connected(self) -> bool: ...

    async def answers(self, timeout_s: float) -> bool:
        """Whether the bus answers now; all that it had for us before was handled by then."""
        ...

    async def renew(self, credential: str) -> None:
        """Go over to a fresh credential make-before-break: connect anew, subscribe, then drain the old."""
        ...

    async def close(self) -> None: ...
