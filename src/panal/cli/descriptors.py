"""File descriptors: each client connection is one, and most systems give a program only 1,024 at first."""

import sys

KEPT_FOR_OTHERS = 256
"""Descriptors for files, the database, the bus and the sockets that listen."""


def room_for_connections(wanted: int) -> int:
    """Raise the soft limit of this process as far as needed and allowed; gives how many fit."""
    if sys.platform == "win32":
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    needed = wanted + KEPT_FOR_OTHERS
    if soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
        except (ValueError, OSError):
            pass  # some systems allow less than their own hard limit: then it stays as it is
    return max(16, min(wanted, soft - KEPT_FOR_OTHERS))
