"""Handlers of the bus that remember what they were told, and can be waited for."""

import asyncio
from collections.abc import Callable, Sequence

from panal.core.ids import NodeKey
from panal.protocol.messages import (
    Acknowledge,
    BodyPart,
    Cancel,
    Frame,
    Heartbeat,
    Instruction,
    Message,
    Present,
    Report,
    RunAttempt,
)


class Recorder:
    """Base: ``until`` waits for a condition on what was recorded."""

    def __init__(self) -> None:
        self.connections: list[bool] = []
        self.refusals: list[str] = []
        self._changed = asyncio.Event()

    def noted(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], bool], seconds: float = 15.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def on_connection(self, connected: bool) -> None:
        self.connections.append(connected)
        self.noted()

    def on_refused(self, reason: str) -> None:
        self.refusals.append(reason)
        self.noted()


class GatewayRecorder(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.frames: list[tuple[NodeKey, Frame]] = []
        self.frame_messages: list[int] = []
        self.absent: list[NodeKey] = []
        self.heartbeats: list[tuple[NodeKey, Heartbeat]] = []
        self.fleet_changes = 0

    def on_frames(self, key: NodeKey, frames: Sequence[Frame]) -> None:
        self.frames.extend((key, frame) for frame in frames)
        self.frame_messages.append(len(frames))
        self.noted()

    def on_heartbeat(self, key: NodeKey, heartbeat: Heartbeat) -> None:
        self.heartbeats.append((key, heartbeat))
        self.noted()

    def on_absent(self, key: NodeKey) -> None:
        self.absent.append(key)
        self.noted()

    def on_fleet_changed(self) -> None:
        self.fleet_changes += 1
        self.noted()


class ControllerRecorder(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.heartbeats: list[tuple[NodeKey, Heartbeat]] = []
        self.reports: list[tuple[NodeKey, Report]] = []

    def on_heartbeat(self, key: NodeKey, heartbeat: Heartbeat) -> None:
        self.heartbeats.append((key, heartbeat))
        self.noted()

    def on_report(self, key: NodeKey, report: Report) -> None:
        self.reports.append((key, report))
        self.noted()


class NodeRecorder(Recorder):
    """``messages``: everything in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def _take(self, message: Message) -> None:
        self.messages.append(message)
        self.noted()

    def on_run(self, attempt: RunAttempt) -> None:
        self._take(attempt)

    def on_part(self, part: BodyPart) -> None:
        self._take(part)

    def on_acknowledge(self, acknowledgement: Acknowledge) -> None:
        self._take(acknowledgement)

    def on_cancel(self, cancel: Cancel) -> None:
        self._take(cancel)

    def on_present(self, present: Present) -> None:
        self._take(present)

    def on_instruction(self, instruction: Instruction) -> None:
        self._take(instruction)


def run_attempt(
    attempt: str = "req_1.1", gateway: str = "gw_one", body: bytes = b"{}", parts: int = 1
) -> RunAttempt:
    """A plain attempt for tests."""
    return RunAttempt(
        attempt=attempt,
        gateway=gateway,
        instance="ins_1",
        replica="rep_1",
        response_id="chatcmpl-1",
        created_utc_s=1_800_000_000,
        route="chat",
        model="small",
        stream=True,
        include_usage=False,
        tenant="tnt_default",
        project="prj_default",
        principal="prn_1",
        data_class=1,
        deadline_s=30.0,
        first_token_s_max=10.0,
        between_tokens_s_max=10.0,
        body=body,
        parts=parts,
    )


class LinkRecorder(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.violations: list[str] = []

    def on_violation(self, text: str) -> None:
        self.violations.append(text)
        self.noted()
