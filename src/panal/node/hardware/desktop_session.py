"""Whether something in the owner's session keeps the screen on: a call, a film, a presentation."""

from panal.node.hardware.bus_calls import BusCalls
from panal.node.hardware.watcher import Blind

GNOME = "org.gnome.SessionManager"
GNOME_IDLE = 8
KDE = "org.freedesktop.PowerManagement"


class KeptOn:
    """A Sensor[bool] over GNOME's session manager, or KDE's power management."""

    name = "screen kept on"
    each_s = 4.0

    def __init__(self, bus: BusCalls) -> None:
        self._bus = bus

    async def look(self) -> bool:
        try:
            (kept,) = await self._bus.ask(
                GNOME, "/org/gnome/SessionManager", GNOME, "IsInhibited", "u", GNOME_IDLE
            )
        except Blind:
            path = "/org/freedesktop/PowerManagement/Inhibit"
            (kept,) = await self._bus.ask(KDE, path, f"{KDE}.Inhibit", "HasInhibit")
        return bool(kept)
