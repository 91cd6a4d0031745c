"""Which replica serves this request: filter, score, pick. Pure.

Score is predicted seconds on that very node: the queue before it, the prompt, the expected answer
(``reference`` rule of D9 in its first form: no cache hits yet), and the risk that its owner comes. Of a
large set, four fitting replicas are drawn and the quickest of them is taken, so that many gateways with old
reports do not all run to the same node.
"""

from collections.abc import Callable, Sequence
from math import exp

import msgspec

from panal.scheduling.replicas import (
    DECODE_S_PER_TOKEN_DEFAULT,
    PREFILL_TOKENS_PER_S_DEFAULT,
    STALE_AFTER_S,
    Need,
    OwnLoad,
    ReplicaView,
)

DRAWN = 4
WAITING_PER_SLOT_MAX = 0
"""Requests put on a replica beyond its slots: none, since work sent too early cannot be moved."""

HAND_OVER_S = 2.0
"""What a move to another replica costs beside reading the prompt anew."""

Candidate = tuple[ReplicaView, OwnLoad]
Draw = Callable[[int], int]
"""``draw(n)`` gives a number from 0 to n - 1; randomness is the caller's."""


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The replica taken and the seconds until its first token, and in all, that were predicted."""

    replica: ReplicaView
    own: OwnLoad
    first_token_s: float
    total_s: float


def choose(candidates: Sequence[Candidate], need: Need, now_s: float, draw: Draw) -> Choice | None:
    """The replica for ``need``, or None where none fits and has room now."""
    best: Choice | None = None
    best_order = (True, float("inf"))
    for replica, own in _drawn(candidates, need, now_s, draw):
        first_s, total_s = predicted_seconds(replica, own, need, now_s)
        # What could not be continued goes to machines without an owner first.
        continued = need.resumable and replica.can_continue(tools=need.tools)
        cost_s = total_s + departure_s(replica, first_s, total_s)
        order = (replica.node_class.owned and not continued, cost_s)
        if best is None or order < best_order:
            best, best_order = Choice(replica, own, first_s, total_s), order
    return best


def unfit(replica: ReplicaView, need: Need, now_s: float) -> str | None:
    """The first reason why ``replica`` cannot take ``need`` at all, or None."""
    if not replica.takes_work:
        return "takes no work"
    if not replica.healthy:
        return "engine is not healthy"
    if now_s - replica.reported_s > STALE_AFTER_S:
        return "not heard of lately"
    if replica.replica_id in need.excluded:
        return "already failed this request"
    if need.route not in replica.routes:
        return "does not serve this route"
    if need.twin is not None and not (replica.twin == need.twin and replica.can_continue(tools=need.tools)):
        return "cannot continue this answer"
    if replica.context_tokens and need.prompt_tokens > replica.context_tokens:
        return "context is too short"
    if not need.allowed(replica):
        return "may not see this data"
    return None


def has_room(replica: ReplicaView, own: OwnLoad) -> bool:
    """Whether a slot is free, counting what other gateways reported and what we sent since."""
    busy = max(own.running, replica.running + replica.waiting)
    return busy < replica.slots + WAITING_PER_SLOT_MAX


def predicted_seconds(replica: ReplicaView, own: OwnLoad, need: Need, now_s: float) -> tuple[float, float]:
    """Seconds until the first token, and until the last, on this node."""
    prefill_rate = replica.prefill_tokens_per_s or PREFILL_TOKENS_PER_S_DEFAULT
    decode_s = replica.decode_s_per_token or DECODE_S_PER_TOKEN_DEFAULT
    age_s = max(0.0, now_s - replica.reported_s)
    pending = max(0.0, replica.pending_prefill_tokens - 0.8 * age_s * prefill_rate)
    pending += own.prefill_tokens_since_report
    running = max(replica.running + own.sent_since_report, own.running) + 1
    first_s = (pending + need.prompt_tokens) / (0.85 * prefill_rate) + decode_s
    crowding = max(1.0, running / max(1, replica.slots))
    return first_s, first_s + need.output_tokens * decode_s * crowding


def departure_s(replica: ReplicaView, first_s: float, total_s: float) -> float:
    """Seconds to be expected for going on elsewhere: the chance that the owner comes before the answer is
    done, times reading the prompt anew and the hand-over. Short answers hardly feel it."""
    if replica.hazard_per_h <= 0.0:
        return 0.0
    return (1.0 - exp(-replica.hazard_per_h * total_s / 3600.0)) * (first_s + HAND_OVER_S)


def _drawn(candidates: Sequence[Candidate], need: Need, now_s: float, draw: Draw) -> list[Candidate]:
    """Up to DRAWN fitting replicas: a random few of many, all of a few, all where the few do not fit.

    Those where an attempt failed a moment ago come only where no other fits.
    """
    count = len(candidates)
    if count > 2 * DRAWN and need.resumable:
        drawn: list[Candidate] = []
        for _ in range(2 * DRAWN):
            replica, own = candidate = candidates[draw(count)]
            if _trusted(own, now_s) and has_room(replica, own) and unfit(replica, need, now_s) is None:
                drawn.append(candidate)
                if len(drawn) == DRAWN:
                    break
        if drawn:
            return drawn
    fitting = [
        (replica, own)
        for replica, own in candidates
        if has_room(replica, own) and unfit(replica, need, now_s) is None
    ]
    return [candidate for candidate in fitting if _trusted(candidate[1], now_s)] or fitting


def _trusted(own: OwnLoad, now_s: float) -> bool:
    return own.inhibited_until_s <= now_s
