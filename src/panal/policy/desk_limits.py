"""What the owner allows, joined with what the operators set: the stricter word counts on both sides. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from panal.policy.hours import Hours

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps are None where there is none. ``hours``: all of them must allow. ``programs``: lower case.
    ``closed``: somebody's limits cannot be understood, so that nothing is allowed."""

    memory_bytes_max: int | None = None
    gpu_memory_bytes_max: int | None = None
    power_w_max: float | None = None
    hours: tuple[str, ...] = ()
    programs: frozenset[str] = frozenset()
    closed: bool = False


def joined(operators: Limits, owner: Limits) -> Limits:
    """Both together. Nothing that the owner says loosens what the operators set, nor the other way round."""
    return Limits(
        memory_bytes_max=_least(operators.memory_bytes_max, owner.memory_bytes_max),
        gpu_memory_bytes_max=_least(operators.gpu_memory_bytes_max, owner.gpu_memory_bytes_max),
        power_w_max=_least(operators.power_w_max, owner.power_w_max),
        hours=tuple(text for text in (*operators.hours, *owner.hours) if text),
        programs=operators.programs | owner.programs,
        closed=operators.closed or owner.closed,
    )


def allowed_now(hours: Sequence[Hours], minute_of_week: int) -> bool:
    return all(each.allow(minute_of_week) for each in hours)


def _least(one: N | None, other: N | None) -> N | None:
    return min((each for each in (one, other) if each is not None), default=None)
