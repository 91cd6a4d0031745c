"""Which card takes a model: enough *free* memory on one card, or nowhere. Cards are never added up."""

from collections.abc import Sequence
from dataclasses import dataclass

from panal.core.gpus import GIB, GpuFacts

RESERVE_BYTES = GIB // 2
"""Left free beside the model, for the desktop and for what engines take late."""

FIRST_WEIGHTS_FACTOR = 1.2
FIRST_FIXED_BYTES = 2 * GIB
"""The first guess of a model that was never loaded here: 1.2 times its weights and 2 GiB (the least that
another well-used fleet manager asks for); from the first load on the measured memory counts."""

OUT_OF_MEMORY_FACTOR = 1.25


@dataclass(frozen=True, slots=True)
class Chosen:
    """``uuid`` None: no card fits. ``reasons`` says of every card why or why not, in order of the cards."""

    uuid: str | None
    needed_bytes: int
    reasons: tuple[str, ...]

    def explanation(self) -> str:
        """One line for a person, naming every card."""
        return f"{_gib(self.needed_bytes)} needed; " + "; ".join(self.reasons or ("there is no card",))


def first_estimate_bytes(weights_bytes: int) -> int:
    """What a model that was never loaded here may need."""
    return int(weights_bytes * FIRST_WEIGHTS_FACTOR) + FIRST_FIXED_BYTES


def raised_estimate_bytes(estimate_bytes: int, free_bytes: int | None) -> int:
    """The estimate after the memory ran out at a load: more than before, and more than was free."""
    return int(max(estimate_bytes, free_bytes or 0) * OUT_OF_MEMORY_FACTOR)


def choose(
    needed_bytes: int,
    cards: Sequence[GpuFacts],
    reserve_bytes: int = RESERVE_BYTES,
    used_by_others: frozenset[str] = frozenset(),
) -> Chosen:
    """The fitting card with the least memory left over, so that larger ones stay for larger models.

    One that others use (by UUID) is taken only where no other fits. A card whose free memory is unknown does
    not fit. Ties go to the smaller UUID, never to the index.
    """
    reasons = []
    fitting: list[tuple[bool, int, str]] = []
    for card in cards:
        name = f"{card.name or 'GPU'} ({card.uuid})"
        free = card.memory_free_bytes
        if card.lost:
            reasons.append(f"{name} is lost")
        elif free is None:
            reasons.append(f"{name} does not tell its free memory")
        elif free - reserve_bytes < needed_bytes:
            total = "" if card.memory_total_bytes is None else f" of {_gib(card.memory_total_bytes)}"
            reasons.append(f"{name} has {_gib(free)}{total} free, {_gib(reserve_bytes)} stay in reserve")
        else:
            used = card.uuid in used_by_others
            reasons.append(f"{name} fits, {_gib(free)} free{', but others use it' if used else ''}")
            fitting.append((used, free, card.uuid))
    return Chosen(min(fitting)[2] if fitting else None, needed_bytes, tuple(reasons))


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB"
