"""From settings to a watch over this machine's owner: the one place that knows all sensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from panal.core.clock import Clock
from panal.core.errors import SettingsError
from panal.core.nodes import NodeClass
from panal.core.settings import Settings
from panal.node.desk import Desk
from panal.node.desk_limits import DeskLimits, operators_limits
from panal.node.hardware.bus_calls import BusCalls, session_address
from panal.node.hardware.desktop_input import DesktopInput
from panal.node.hardware.idle import IdleSensor, sensor_for
from panal.node.hardware.idle_helper import HelperIdle
from panal.node.hardware.learnt_calendar import LearntCalendar
from panal.node.hardware.memory import EngineMemory
from panal.node.hardware.owner_watch import OwnerWatch
from panal.node.hardware.senses import GpuSensor, Senses
from panal.node.hardware.surroundings import Place
from panal.policy.hours import hours_fault
from panal.policy.owner_values import policy_for


@dataclass(frozen=True, slots=True)
class Machine:
    """``home`` is the agent's, ``weights`` the model cache, ``platform`` is ``sys.platform``."""

    home: Path
    weights: Path
    node_class: NodeClass
    platform: str
    environment: Mapping[str, str]


def build_watch(
    machine: Machine,
    settings: Settings,
    clock: Clock,
    *,
    memory: EngineMemory | None = None,
    gpu: GpuSensor | None = None,
) -> OwnerWatch:
    """The watch, not started. ``memory`` and ``gpu`` come from whoever knows the accelerators.

    Raises SettingsError for hours that cannot be understood.
    """
    fault = hours_fault(settings.owner.hours)
    if fault is not None:
        raise SettingsError(f"Setting 'owner.hours' {fault}.", param="owner.hours")
    owned = machine.node_class.owned
    linux = machine.platform.startswith("linux")
    session_bus = None
    if owned and linux:
        session_bus = BusCalls("session bus", session_address(machine.environment), clock)
    place = Place(
        platform=machine.platform,
        environment=machine.environment,
        owned=owned,
        weights=machine.weights,
        disk_free_bytes_min=settings.owner.disk_free_bytes_min,
        weights_bytes_max=settings.owner.weights_bytes_max,
        session_bus=session_bus,
    )
    operators, desk_limits = operators_limits(settings.owner), DeskLimits(machine.home)
    memory = memory if memory is not None else EngineMemory()
    senses = Senses(place, clock, lambda: desk_limits.with_operators(operators), memory, gpu)
    sensor: IdleSensor
    if session_bus is not None:
        sensor = DesktopInput(
            machine.environment, clock, session_bus, senses.surroundings.sessions,
            poll_s=settings.node.poll_s,
        )  # fmt: skip
    else:
        sensor = sensor_for(machine.node_class, machine.platform, machine.environment, clock)
        if owned:
            sensor = HelperIdle(machine.home / "desk" / "sessions", sensor, clock)
    return OwnerWatch(
        policy_for(machine.node_class, settings.owner),
        sensor,
        Desk(machine.home, clock),
        memory,
        clock,
        poll_s=settings.node.poll_s,
        senses=senses,
        calendar=LearntCalendar(machine.home / "desk" / "calendar.json", clock) if owned else None,
    )
