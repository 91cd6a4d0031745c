"""Addresses taken before anything listens there, by one process or by several that share them."""

import socket
import sys

from panal.core.errors import SettingsError

SHARED = sys.platform == "linux"
"""Whether the kernel spreads connections over the processes that listen on one port. Others let several
listen too, but give all connections to one of them."""


def bound(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """The address taken, but nobody let in yet. Raises SettingsError when it is in use or not ours.

    ``shared``: other processes of the same user may have it too, if they also say so.
    """
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        taken = socket.socket(family, kind, number)
        try:
            if sys.platform != "win32":
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                _share(taken)
            taken.bind(address)
        except OSError:
            taken.close()
            raise
    except OSError as error:
        raise cannot_listen(host, port, error) from error
    return taken


def reserved(host: str, port: int) -> socket.socket:
    """The address held for processes that share it: nobody listens on this socket, and it stays open
    as long as they may come and go. Raises SettingsError when it is in use, also by others who share it.
    """
    taken = bound(host, port)
    _share(taken)  # only now: bound with it, we would silently join a stranger
    return taken


def cannot_listen(host: str, port: int, error: OSError) -> SettingsError:
    return SettingsError(
        f"Cannot listen on {host} port {port}: {error.strerror or error}. "
        "Choose another port or address, or end the program that uses it."
    )


def _share(taken: socket.socket) -> None:
    if sys.platform != "win32":
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
