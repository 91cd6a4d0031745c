"""Is somebody else on the GPU, is it hot, is it gone: pure decisions over readings of the driver.

The rule: a compute context of others; or others' drawing above BUSY_SHARE in two samples at least
SAMPLES_APART_S apart; or memory that is neither ours nor the desktop's usual above MEMORY_SLACK_BYTES.
"""

from dataclasses import dataclass, replace

from panal.core.gpus import GIB, ForeignUse, GpuFacts, GpuReading, Thermal

BUSY_SHARE = 0.10
SAMPLES_APART_S = 1.0
SAMPLES_APART_S_MAX = 5.0
"""Two busy samples further apart than this say nothing of the time between them."""
MEMORY_SLACK_BYTES = GIB
BASELINE_ASSUMED_BYTES = int(1.5 * GIB)
"""What a desktop session may hold before its usual use was learnt (0.5 to 1.5 GB were seen)."""
BASELINE_BYTES_MAX = 3 * GIB
BASELINE_RISE = 1 / 64
"""A baseline falls at once and rises by this part of the difference: no creeping program becomes it."""
HOT_S = 10.0
HOT_WORDS = frozenset({"hw_thermal"})
"""Slowing down by software at its target temperature is how many cards work all day."""
LATE_S_MAX = 5.0
"""A driver that answers nothing for so long has lost its GPUs."""
STALE_S = 3.0


@dataclass(frozen=True, slots=True)
class Card:
    """What is remembered of one GPU between two readings. Times are monotonic, None: not so."""

    uuid: str
    baseline_bytes: int | None = None
    busy_since_s: float | None = None
    busy_last_s: float | None = None
    hot_since_s: float | None = None
    lost: bool = False
    foreign: ForeignUse = ForeignUse.UNKNOWN


@dataclass(frozen=True, slots=True)
class Watched:
    """All GPUs that were ever seen in this run, and what the last readings mean together."""

    cards: tuple[Card, ...] = ()
    at_s: float | None = None
    good_s: float | None = None
    foreign: ForeignUse = ForeignUse.UNKNOWN
    thermal: Thermal = Thermal.UNKNOWN
    lost: tuple[str, ...] = ()
    """UUIDs of GPUs that were there and are not usable now."""

    def card(self, uuid: str) -> Card:
        return next((card for card in self.cards if card.uuid == uuid), Card(uuid))


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """What the owner's machine asks at each of its polls.

    A machine without GPUs answers ``foreign`` NO and ``thermal`` OK. UNKNOWN is never NO.
    """

    foreign: ForeignUse
    thermal: Thermal
    lost: tuple[str, ...] = ()

    @property
    def is_lost(self) -> bool:
        return bool(self.lost)


def watch(before: Watched, reading: GpuReading, *, may_learn: bool) -> Watched:
    """Take one reading in. ``may_learn``: nobody is at the machine, so what is there is the desktop's own."""
    if reading.problem:
        return _failed(before, reading)
    there = {gpu.uuid: gpu for gpu in reading.gpus}
    cards = []
    verdicts = []
    for uuid in dict.fromkeys([*(card.uuid for card in before.cards), *there]):
        card, gpu = before.card(uuid), there.get(uuid)
        if gpu is None or gpu.lost:
            cards.append(Card(uuid, baseline_bytes=card.baseline_bytes, lost=True))
            continue
        card = _heat(_busy(card, gpu, reading), gpu, reading.at_s)
        verdict = foreign_use(card, gpu, reading.own)
        if may_learn and verdict is ForeignUse.NO:
            card = replace(card, baseline_bytes=learnt(card.baseline_bytes, others_bytes(gpu, reading.own)))
        cards.append(replace(card, lost=False, foreign=verdict))
        verdicts.append(verdict)
    lost = tuple(card.uuid for card in cards if card.lost)
    return Watched(
        cards=tuple(cards),
        at_s=reading.at_s,
        good_s=reading.at_s,
        foreign=_worst(verdicts, unknown=bool(lost)),
        thermal=_thermal(cards, there, reading.at_s, unknown=bool(lost)),
        lost=lost,
    )


def answer(watched: Watched, now_s: float) -> GpuAnswer:
    """The state now; readings that are too old are unknown."""
    if watched.at_s is None or now_s - watched.at_s > STALE_S:
        return GpuAnswer(ForeignUse.UNKNOWN, Thermal.UNKNOWN, watched.lost)
    return GpuAnswer(watched.foreign, watched.thermal, watched.lost)


def foreign_use(card: Card, gpu: GpuFacts, own: frozenset[int]) -> ForeignUse:
    """The rule of this module for one GPU."""
    if gpu.problem:
        return ForeignUse.UNKNOWN
    processes = gpu.processes
    if processes is not None and any(
        each.computes and not each.draws and each.pid not in own for each in processes
    ):
        return ForeignUse.YES
    if (
        card.busy_since_s is not None
        and card.busy_last_s is not None
        and card.busy_last_s - card.busy_since_s >= SAMPLES_APART_S
    ):
        return ForeignUse.YES
    others = others_bytes(gpu, own)
    if others is not None and others - usual_bytes(card) > MEMORY_SLACK_BYTES:
        return ForeignUse.YES
    # Without an engine of ours all that runs is foreign, so fewer facts are enough.
    blind = others is None or _others_busy_share(gpu, own) is None
    return ForeignUse.UNKNOWN if blind else ForeignUse.NO


def usual_bytes(card: Card) -> int:
    """The desktop's usual memory on this GPU, learnt or assumed."""
    return BASELINE_ASSUMED_BYTES if card.baseline_bytes is None else card.baseline_bytes


def others_bytes(gpu: GpuFacts, own: frozenset[int]) -> int | None:
    """Memory in use that is not ours; None where it cannot be told."""
    if gpu.memory_used_bytes is None:
        return None
    if not own:
        return gpu.memory_used_bytes
    if gpu.processes is None:
        return None
    ours = [each.memory_bytes for each in gpu.processes if each.pid in own]
    if any(held is None for held in ours):
        return None
    return max(0, gpu.memory_used_bytes - sum(held for held in ours if held is not None))


def learnt(baseline_bytes: int | None, seen_bytes: int | None) -> int | None:
    """The baseline after one more sample of a machine that nobody uses."""
    if seen_bytes is None:
        return baseline_bytes
    seen_bytes = min(seen_bytes, BASELINE_BYTES_MAX)
    if baseline_bytes is None or seen_bytes < baseline_bytes:
        return seen_bytes
    return baseline_bytes + int((seen_bytes - baseline_bytes) * BASELINE_RISE)


def _others_busy_share(gpu: GpuFacts, own: frozenset[int]) -> float | None:
    """How busy others keep the GPU, from 0 to 1; None where it cannot be told."""
    if not own:
        return gpu.busy_share
    if gpu.processes is None:
        return None
    if all(each.pid in own for each in gpu.processes):
        return 0.0
    shares = [each.busy_share for each in gpu.processes if each.pid not in own]
    if any(share is None for share in shares):
        return None
    return sum(share for share in shares if share is not None)


def _busy(card: Card, gpu: GpuFacts, reading: GpuReading) -> Card:
    share = _others_busy_share(gpu, reading.own)
    if share is None or share <= BUSY_SHARE:
        return replace(card, busy_since_s=None, busy_last_s=None)
    gap = card.busy_last_s is None or reading.at_s - card.busy_last_s > SAMPLES_APART_S_MAX
    return replace(card, busy_since_s=reading.at_s if gap else card.busy_since_s, busy_last_s=reading.at_s)


def _heat(card: Card, gpu: GpuFacts, at_s: float) -> Card:
    if not gpu.throttle or not gpu.throttle & HOT_WORDS:
        return replace(card, hot_since_s=None)
    return replace(card, hot_since_s=at_s if card.hot_since_s is None else card.hot_since_s)


def _thermal(cards: list[Card], there: dict[str, GpuFacts], at_s: float, *, unknown: bool) -> Thermal:
    if any(card.hot_since_s is not None and at_s - card.hot_since_s >= HOT_S for card in cards):
        return Thermal.HOT
    untold = any(gpu.throttle is None for gpu in there.values())
    return Thermal.UNKNOWN if untold or unknown else Thermal.OK


def _worst(verdicts: list[ForeignUse], *, unknown: bool) -> ForeignUse:
    if ForeignUse.YES in verdicts:
        return ForeignUse.YES
    if unknown or ForeignUse.UNKNOWN in verdicts:
        return ForeignUse.UNKNOWN
    return ForeignUse.NO


def _failed(before: Watched, reading: GpuReading) -> Watched:
    """A look that failed. An error is a loss at once; a driver that hangs gets LATE_S_MAX."""
    since_s = reading.at_s if before.good_s is None else before.good_s
    waits = reading.late and reading.at_s - since_s < LATE_S_MAX
    cards = before.cards if waits else tuple(replace(card, lost=True) for card in before.cards)
    return Watched(
        cards=cards,
        at_s=reading.at_s,
        good_s=before.good_s,
        foreign=ForeignUse.UNKNOWN,
        thermal=Thermal.UNKNOWN,
        lost=tuple(card.uuid for card in cards if card.lost),
    )
