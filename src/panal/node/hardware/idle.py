"""How long nobody has touched this machine: the seam, and which sensor looks where."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from panal.core.clock import Clock
from panal.core.nodes import NodeClass


@dataclass(frozen=True, slots=True)
class Idle:
    """Nobody has touched keyboard, mouse or the like for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Unknown:
    """The sensor cannot tell; ``reason`` is for the log and for ``panal desk status``."""

    reason: str


class IdleSensor(Protocol):
    """Looks at times only, never at what was typed."""

    def read(self) -> Idle | Unknown:
        """The idle time now. Never raises, and returns within 0.3 s whatever the desktop does."""
        ...

    def close(self) -> None:
        """Let go of the desktop; a later ``read`` takes hold of it again."""
        ...


@runtime_checkable
class LivingSensor(Protocol):
    """An IdleSensor that has to ask in the background; ``read`` then gives its newest answer."""

    async def run(self) -> None:
        """Ask until cancelled."""
        ...


class NoSensor:
    """A machine whose input cannot be seen: always Unknown, hence never free if it has an owner."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def read(self) -> Idle | Unknown:
        return Unknown(self._reason)

    def close(self) -> None:
        """There is nothing to let go of."""


def sensor_for(
    node_class: NodeClass, platform: str, environment: Mapping[str, str], clock: Clock
) -> IdleSensor:
    """The sensor that needs no running agent. ``platform`` is ``sys.platform``, ``environment`` the agent's.

    On a Wayland session X11 sees only the input of old programs: it would call a busy desk idle.
    """
    if not node_class.owned:
        return NoSensor("a dedicated node has no owner at its keyboard")
    if platform == "win32":
        from panal.node.hardware.idle_windows import WindowsIdle

        return WindowsIdle()
    if platform == "darwin":
        from panal.node.hardware.idle_macos import MacIdle

        return MacIdle()
    if not platform.startswith("linux"):
        return NoSensor(f"there is no sensor for {platform}")
    if environment.get("WAYLAND_DISPLAY") or environment.get("XDG_SESSION_TYPE") == "wayland":
        return NoSensor("on Wayland the running agent asks the desktop: panal desk status")
    if not environment.get("DISPLAY"):
        return NoSensor("there is no DISPLAY: the agent must run inside the owner's session")
    from panal.node.hardware.idle_x11 import X11Idle

    return X11Idle(environment, clock)
