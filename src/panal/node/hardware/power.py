"""Mains or battery: UPower where it runs, else what the system itself tells."""

from typing import Any

import psutil

from panal.node.hardware.aside import Aside
from panal.node.hardware.bus_calls import BusCalls
from panal.node.hardware.watcher import Blind

SERVICE = "org.freedesktop.UPower"
PATH = "/org/freedesktop/UPower"


class Power:
    """A Sensor[bool]: whether the machine runs on its battery. A machine without one never does."""

    name = "power"
    each_s = 4.0

    def __init__(self, bus: BusCalls | None) -> None:
        self._bus = bus
        self._psutil = Aside(_on_battery, "the battery")

    async def look(self) -> bool:
        if self._bus is not None:
            try:
                found = await self._bus.properties(SERVICE, PATH, SERVICE)
                return bool(found["OnBattery"])
            except (Blind, KeyError):
                pass  # the system's own word then
        return await self._psutil.call()


def _on_battery() -> bool:
    sensors: Any = getattr(psutil, "sensors_battery", None)
    battery = sensors() if sensors is not None else None
    if battery is None:
        return False
    if battery.power_plugged is None:
        raise Blind("the battery does not tell whether it is plugged in")
    return not battery.power_plugged
