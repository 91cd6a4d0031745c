"""How long to wait before the next try, so that many who lost one server do not come back as one. Pure."""

SPREAD_S = 0.5
"""The first tries after a loss fall anywhere into this time."""

BACK_OFF_S_MIN = 0.05
BACK_OFF_S_MAX = 2.0


def first_pause_s(draw: float) -> float:
    """Before the first try after a connection that had held. ``draw`` is in [0, 1)."""
    return SPREAD_S * draw


def pause_s(failures: int, draw: float, longest_s: float = BACK_OFF_S_MAX) -> float:
    """After so many failed tries: doubled each time up to ``longest_s``, its upper half drawn."""
    grown_s = BACK_OFF_S_MIN * 2.0 ** min(failures, 20)
    return min(longest_s, grown_s) * (0.5 + 0.5 * draw)
