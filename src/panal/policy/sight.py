"""What the readings of an input sensor are worth. A doubtful reading counts as input just now."""

from dataclasses import dataclass, replace
from math import inf, isfinite

from panal.policy.owner_values import Reading

JITTER_S = 0.05
SLACK_S = 1.0
SLACK_SHARE = 0.001
SLACK_S_MAX = 5.0
DOUBT_S = 10.0
FROZEN_S = 60.0
"""Nobody types so evenly that each look finds the very same time for so long."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What is believed after a reading.

    ``read_s``: when it was taken. ``input_s``: the last input that is believed. ``sensor_input_s``: the
    last input by the sensor's own account, None after a reading without one. ``problem``: why the
    sensor is not believed, empty when it is. ``doubted_s``: when it last was implausible.
    """

    read_s: float
    input_s: float
    sensor_input_s: float | None
    problem: str = ""
    doubted_s: float = -inf
    idle_s: float | None = None
    same_from_s: float = inf
    """Since when the sensor has said the same ``idle_s``."""


def see(before: Sight | None, reading: Reading) -> Sight:
    """Take in a reading.

    Idle time either grows with the clock or falls to less than the time since the last reading, which is
    input. Anything else is implausible: negative, standing still, jumping ahead, falling a little. It counts
    as input, and the sensor is not believed for the next DOUBT_S either; it is then measured against its
    new account. The very first reading has nothing to be measured against and is believed. One that says the
    same for FROZEN_S sees nobody.
    """
    sight = _seen(before, reading)
    same = before is not None and reading.idle_s is not None and before.idle_s == reading.idle_s
    from_s = before.same_from_s if same and before is not None else reading.now_s
    sight = replace(sight, idle_s=reading.idle_s, same_from_s=from_s)
    if reading.now_s - from_s >= FROZEN_S:
        return replace(sight, problem="implausible: it never changes", doubted_s=reading.now_s)
    return sight


def _seen(before: Sight | None, reading: Reading) -> Sight:
    now_s, idle_s = reading.now_s, reading.idle_s
    if idle_s is None:
        return Sight(now_s, now_s, None, reading.problem or "the sensor gave no reason")
    if not isfinite(idle_s) or idle_s < 0:
        return Sight(now_s, now_s, None, "implausible: not a time", now_s)
    told_s = now_s - idle_s
    if before is None:
        return Sight(now_s, told_s, told_s)
    doubted_s = before.doubted_s
    problem = before.problem if now_s - doubted_s < DOUBT_S else ""
    if before.sensor_input_s is None:
        return Sight(now_s, max(told_s, before.input_s), told_s, problem, doubted_s)
    moved_s = told_s - before.sensor_input_s
    if moved_s > JITTER_S and idle_s <= now_s - before.read_s + JITTER_S:
        return Sight(now_s, max(told_s, before.input_s), told_s, problem, doubted_s)
    if abs(moved_s) > min(SLACK_S + SLACK_SHARE * idle_s, SLACK_S_MAX):
        return Sight(now_s, now_s, told_s, "implausible: idle time does not follow the clock", now_s)
    return Sight(now_s, before.input_s, before.sensor_input_s, problem, doubted_s)
