"""Looks at all running answers four times a second: silence, deadlines, keep-alives.

One task for all of them, so that a chunk never touches a timer. An attempt is given up when its node
or engine is known to be gone and nothing came for a while - not merely because it is slow. Nodes that
are quiet are probed: the bus says within a round trip if nobody is there. Clients that do not read are
the connection's own affair (gateway/http_protocol.py), which sees whether they take anything at all.
"""

import asyncio
from dataclasses import dataclass

from panal.core.clock import Clock
from panal.core.errors import (
    AttemptTimeout,
    DeadlineExceeded,
    EngineFailed,
    NodeLost,
    PanalError,
)
from panal.core.ids import NodeKey
from panal.dispatch.answer import Answer, Attempt
from panal.dispatch.dispatcher import Dispatcher
from panal.dispatch.fleet import Fleet
from panal.dispatch.limits import Limits
from panal.dispatch.outcome import PREDICTED_FIRST_TOKEN
from panal.scheduling.replicas import ReplicaView
from panal.scheduling.routing import Choice

LOOK_EACH_S = 0.25
SILENCE_S_MIN = 2.0
SILENCE_TOKENS = 8
"""A running stream counts as silent after this many of its replica's token times, at least 2 s."""
HEDGE_FACTOR = 3.0
HEDGE_SHARE = 0.05
HEDGES_SAVED_MAX = 5.0
AGENT_MARGIN_S = 1.0
"""The agent keeps the token limits itself; the gateway steps in this much later."""


@dataclass(slots=True)
class HedgeBudget:
    """At most one request in twenty is tried elsewhere only because it is slower than predicted."""

    saved: float = 1.0

    def request_came(self) -> None:
        self.saved = min(HEDGES_SAVED_MAX, self.saved + HEDGE_SHARE)

    def spend(self) -> bool:
        if self.saved < 1.0:
            return False
        self.saved -= 1.0
        return True


class Watch:
    """Ends attempts that will not end by themselves."""

    def __init__(
        self, dispatcher: Dispatcher, fleet: Fleet, clock: Clock, limits: Limits, hedges: HedgeBudget
    ) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._clock = clock
        self._limits = limits
        self._hedges = hedges

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EACH_S)
            self._fleet.sight.watched()
            self.look()

    def look(self) -> None:
        """One look at everything."""
        now_s = self._clock.monotonic_seconds()
        if not self._fleet.sight.excuses:
            self._fleet.forget_lost()
        self._dispatcher.tell_presence()
        quiet: set[NodeKey] = set()
        for answer in list(self._dispatcher.running.values()):
            attempt = answer.attempt
            if attempt is None:
                continue
            if now_s >= answer.request.deadline_monotonic_s:
                answer.interrupt(_deadline(answer))
            else:
                failure = None if attempt.ended else self._failure(answer, attempt, now_s)
                if failure is not None:
                    answer.end(failure)
                    continue
                self._keep_alive(answer, now_s)
                if now_s - (attempt.progress_s or attempt.opened_s) >= LOOK_EACH_S:
                    quiet.add(attempt.choice.replica.key)
        for answer in list(self._dispatcher.waiting.values()):
            if answer.attempt is None:
                self._keep_alive(answer, now_s)
        quiet |= self._dispatcher.hand_overs.look(self._warm_up_failure)
        self._dispatcher.probe(quiet)

    def _failure(self, answer: Answer, attempt: Attempt, now_s: float) -> PanalError | None:
        """Why this attempt is to be given up now, or None."""
        replica = attempt.choice.replica
        if self._restarted(replica):
            return NodeLost(f"The node {replica.node_name} was started anew.")
        if attempt.progress_s is None:
            return self._failure_before_first(answer, attempt, now_s - attempt.opened_s)
        silent_s = now_s - max(attempt.progress_s, self._drained_s(answer, now_s))
        pace_s = replica.decode_s_per_token
        if silent_s > max(SILENCE_S_MIN, SILENCE_TOKENS * pace_s):
            gone = self._gone(replica)
            if gone is not None:
                return gone
        limit_s = self._limits.between_tokens_s_max
        if silent_s > limit_s + AGENT_MARGIN_S:
            return AttemptTimeout("between_tokens", limit_s)
        return None

    def _failure_before_first(self, answer: Answer, attempt: Attempt, waited_s: float) -> PanalError | None:
        if waited_s > SILENCE_S_MIN:
            gone = self._gone(attempt.choice.replica)
            if gone is not None:
                return gone
        limit_s = self._limits.first_token_s_max
        if waited_s > limit_s + AGENT_MARGIN_S:
            return AttemptTimeout("first_token", limit_s)
        hedge_after_s = max(SILENCE_S_MIN, HEDGE_FACTOR * attempt.choice.first_token_s)
        late = waited_s > hedge_after_s and len(answer.logs) == 1
        if late and self._dispatcher.could_move(answer, attempt) and self._hedges.spend():
            return AttemptTimeout(PREDICTED_FIRST_TOKEN, hedge_after_s)
        return None

    def _warm_up_failure(self, choice: Choice, begun_s: float) -> PanalError | None:
        """Why this warm-up will come to nothing, or None."""
        if self._restarted(choice.replica):
            return NodeLost(f"The node {choice.replica.node_name} was started anew.")
        silent_s = self._clock.monotonic_seconds() - begun_s
        return self._gone(choice.replica) if silent_s > SILENCE_S_MIN else None

    def _gone(self, replica: ReplicaView) -> PanalError | None:
        """Whether node or engine are known not to work. What was lost on the way between gateway and node
        shows in presence.py."""
        if self._fleet.sight.excuses:
            return None
        if not self._fleet.fresh(replica.key):
            return NodeLost(f"The node {replica.node_name} is not heard of any more.")
        view = self._fleet.view(replica.replica_id)
        if view is None:
            return NodeLost(f"The node {replica.node_name} no longer serves this model.")
        if not view.healthy:
            return EngineFailed(f"The engine on {replica.node_name} does not answer.")
        return None

    def _restarted(self, replica: ReplicaView) -> bool:
        """Whether another instance of the node's agent took the place of the one that had the attempt."""
        view = self._fleet.view(replica.replica_id)
        return view is not None and view.instance != replica.instance

    def _drained_s(self, answer: Answer, now_s: float) -> float:
        """While the client's buffer is full, the node has no reason to send."""
        return now_s if answer.sink.full else 0.0

    def _keep_alive(self, answer: Answer, now_s: float) -> None:
        """Fill a silence, also one in the queue: the first comment begins the response with its 200."""
        if not answer.request.stream or answer.sink.full:
            return
        last_s = answer.written_s if answer.written_s is not None else answer.opened_s
        if now_s - last_s >= self._limits.comment_each_s:
            answer.written_s = now_s
            answer.sink.keep_alive()


def _deadline(answer: Answer) -> PanalError:
    return DeadlineExceeded(answer.request.total_s_max)
