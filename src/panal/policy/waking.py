"""Wake-on-LAN: which hardware addresses may be woken, and the packet that does it. Pure.

The packet is AMD's "magic packet": six bytes FF, then the address sixteen times.
"""

import re
from collections.abc import Iterable

MACS_MAX = 8
WAKE_PORT = 9
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


def plain_mac(text: str) -> str | None:
    """``aa:bb:cc:dd:ee:ff`` of whatever way to write it, None for what is no address of one machine."""
    mac = text.strip().lower().replace("-", ":")
    if _MAC.fullmatch(mac) is None or int(mac[:2], 16) & 1 or mac == "00:00:00:00:00:00":
        return None  # the lowest bit of the first byte: a group of machines
    return mac


def plain_macs(texts: Iterable[object]) -> tuple[str, ...]:
    """The addresses among them, each once, sorted, at most MACS_MAX."""
    found = {mac for text in texts if isinstance(text, str) and (mac := plain_mac(text)) is not None}
    return tuple(sorted(found)[:MACS_MAX])


def magic_packet(mac: str) -> bytes:
    """102 bytes. ``mac`` as plain_mac gives it."""
    return b"\xff" * 6 + bytes.fromhex(mac.replace(":", "")) * 16
