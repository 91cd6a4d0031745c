"""Room on the disk that holds the weights, and how much of it they take."""

import os
import shutil
from pathlib import Path

from panal.node.hardware.aside import Aside

FILES_MAX = 100_000


class Disk:
    """A Sensor[bool]: whether the disk is too full for weights, or weights take more than they may."""

    name = "disk"
    each_s = 10.0

    def __init__(self, folder: Path, free_bytes_min: int, weights_bytes_max: int) -> None:
        self._folder = folder
        self._free_bytes_min = free_bytes_min
        self._weights_bytes_max = weights_bytes_max
        self._aside = Aside(self._read, "the disk")

    async def look(self) -> bool:
        return await self._aside.call()

    def _read(self) -> bool:
        place = self._folder
        while not place.exists() and place != place.parent:
            place = place.parent
        if shutil.disk_usage(place).free < self._free_bytes_min:
            return True
        return bool(self._weights_bytes_max) and size_bytes(self._folder) > self._weights_bytes_max


def size_bytes(folder: Path) -> int:
    """Of all files in a folder; what vanishes meanwhile counts nothing."""
    total = count = 0
    for place, _folders, names in os.walk(folder):
        for name in names:
            count += 1
            if count > FILES_MAX:
                return total
            try:
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 - a Path each costs more
            except OSError:
                continue
    return total
