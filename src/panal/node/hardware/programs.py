"""Programs whose running means that the owner needs the machine. Their names stay on this machine."""

from collections.abc import Callable, Collection

import psutil

from panal.node.hardware.aside import Aside

YOUNG_LOOKS = 3
"""A process may take its name some time after its birth: it is looked at again so many times."""

ALL_EACH_LOOKS = 30
"""And all of them so often, for those that become another program later."""


class Programs:
    """A Sensor[tuple[str, ...]]: which of the named programs run. ``own`` are pids that do not count.

    Only processes that were not there at the last look are asked for their names, so that a look costs
    one listing.
    """

    name = "named programs"
    each_s = 2.0

    def __init__(self, names: Callable[[], Collection[str]], own: Callable[[], Collection[int]]) -> None:
        self._names = names
        self._own = own
        self._known: dict[int, tuple[str, int]] = {}
        self._looks = 0
        self._aside = Aside(self._read, "the list of processes")

    async def look(self) -> tuple[str, ...]:
        if not self._names():
            self._known.clear()
            return ()
        return await self._aside.call()

    def _read(self) -> tuple[str, ...]:
        wanted = {_plain(name) for name in self._names()}
        own = set(self._own())
        pids = set(psutil.pids())
        known = {pid: seen for pid, seen in self._known.items() if pid in pids}
        for pid in pids:
            looks = known.get(pid, ("", 0))[1]
            if looks < YOUNG_LOOKS or self._looks % ALL_EACH_LOOKS == 0:
                known[pid] = (_name(pid), looks + 1)
        self._known = known
        self._looks += 1
        return tuple(sorted({name for pid, (name, _) in known.items() if name in wanted and pid not in own}))


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".exe")


def _name(pid: int) -> str:
    try:
        return _plain(psutil.Process(pid).name())
    except psutil.Error:
        return ""
