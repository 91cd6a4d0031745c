"""A planned hand-over: the next node reads the answer so far while the leaving one still speaks.

The warm-up is an attempt like any other, but what it says is thrown away: its first token shows that the
prompt and the answer are in the new engine's prefix cache. Then the old attempt is fenced, and the answer
goes on from its true last token, which is a short read for the new engine. So nothing needs to be compared
or skipped, and a node that does not cache costs a pause, never a character (docs/adr/0019).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from panal.core.clock import Clock
from panal.core.errors import NodeAbsent, PanalError
from panal.core.ids import NodeKey
from panal.dispatch.answer import LEAVES, Answer, Attempt
from panal.dispatch.bookings import Bookings
from panal.dispatch.limits import Limits
from panal.dispatch.outcome import AttemptLog, distrusts
from panal.dispatch.warm_up import WarmUp
from panal.protocol.messages import Frame
from panal.scheduling.continuation import can_go_on
from panal.scheduling.replicas import INHIBITED_S, Need
from panal.scheduling.routing import Choice
from panal.telemetry.logs import fields

log = logging.getLogger("panal.gateway")


class Book(Protocol):
    """Books a replica; see Bookings.book for what it raises."""

    def __call__(self, answer: Answer, need: Need, patience_s: float) -> Awaitable[Choice]: ...


class HandOvers:
    """All hand-overs of a dispatcher, whose ways to book, begin and cancel it is given."""

    def __init__(
        self,
        bookings: Bookings,
        clock: Clock,
        limits: Limits,
        book: Book,
        run: Callable[[Answer, str, Choice], None],
        cancel: Callable[[str, Choice, AttemptLog, PanalError], None],
    ) -> None:
        self._bookings = bookings
        self._clock = clock
        self._limits = limits
        self._book = book
        self._run = run
        self._cancel = cancel
        self._warming: dict[str, WarmUp] = {}

    def on_frame(self, key: NodeKey, frame: Frame) -> None:
        """A frame of an attempt that no answer waits for."""
        warm_up = self._warming.get(frame.attempt)
        if warm_up is not None and warm_up.key == key:
            warm_up.on_frame(frame)

    def warming(self) -> list[tuple[str, Choice]]:
        """Names of the warm-ups that run now, and where."""
        return [(name, warm_up.choice) for name, warm_up in self._warming.items()]

    def look(self, gone: Callable[[Choice, float], PanalError | None]) -> set[NodeKey]:
        """End the warm-ups whose node or engine is gone: ``gone(where, since_s)`` says why. Gives the
        nodes of the others."""
        for warm_up in self._warming.values():
            failure = gone(warm_up.choice, warm_up.log.opened_monotonic_s)
            if failure is not None:
                warm_up.fail(failure)
        return {warm_up.key for warm_up in self._warming.values()}

    def on_absent(self, key: NodeKey) -> None:
        """The bus says that nobody hears this node."""
        for warm_up in self._warming.values():
            if warm_up.key == key:
                warm_up.fail(NodeAbsent(f"The node {warm_up.log.node_name} is not on the bus."))

    async def hand_over(
        self, answer: Answer, attempt: Attempt, need: Need, twin: str
    ) -> tuple[PanalError | None, Choice | None]:
        """The node leaves in a moment, and speaks on until another one has read the answer so far.

        Gives what the attempt ended with (None: the answer is complete) and the replica that is to go on,
        booked. What could not go on may end by itself within the node's grace. What has not begun moves
        at once. ``twin`` is the mark of those that could continue it, empty where nobody could.
        """
        so_far, choice = answer.so_far, attempt.choice
        if not so_far.begun:
            return LEAVES, None
        possible = can_go_on(so_far, resumable=answer.request.resumable, twin=twin)
        if not possible or so_far.breaks >= self._limits.resumes_max:
            return await answer.ending(attempt), None
        need = replace(need, excluded=need.excluded | {choice.replica.replica_id}, twin=twin)
        loop = asyncio.get_running_loop()
        warming = loop.create_task(self._warm_somewhere(answer, need), name=f"warm-up {attempt.name}")
        ending = loop.create_task(answer.ending(attempt), name=f"ending {attempt.name}")
        try:
            await asyncio.wait({warming, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not _final(answer, attempt) and await warming is None:
                await ending
        except BaseException:
            self.give_back(await _stopped(warming, ending))
            raise
        prepared = await _stopped(warming, ending)
        if _final(answer, attempt):
            self.give_back(prepared)
            return attempt.failure, None
        return attempt.failure or LEAVES, prepared

    def give_back(self, prepared: Choice | None) -> None:
        """Release a replica that was booked in vain."""
        if prepared is not None:
            self._bookings.release(prepared)

    async def _warm_somewhere(self, answer: Answer, need: Need) -> Choice | None:
        """A booked replica that has read the answer so far; None where there is none in time."""
        for _ in range(self._limits.attempts_max):
            try:
                choice = await self._book(answer, need, patience_s=self._limits.recovery_s_max)
            except PanalError:
                return None
            if await self._warm_up(answer, choice):
                return choice
            if answer.interruption is not None:
                return None
            need = replace(need, excluded=need.excluded | {choice.replica.replica_id})
        return None

    async def _warm_up(self, answer: Answer, choice: Choice) -> bool:
        """Whether the replica has read the answer so far; if not, it is given back."""
        begun_s = self._clock.monotonic_seconds()
        log = AttemptLog(len(answer.logs) + 1, choice.replica.node_id, choice.replica.node_name)
        log.opened_monotonic_s = begun_s
        warm_up = WarmUp(name_of(answer), choice, log)
        answer.logs.append(log)
        self._warming[warm_up.name] = warm_up
        answer.while_waiting(warm_up.fail)
        ready = False
        try:
            begin = partial(self._run, answer, warm_up.name, choice)
            failure = await warm_up.warm(begin, self._limits.first_token_s_max)
            ready = failure is None
            if distrusts(failure):
                choice.own.inhibited_until_s = self._clock.monotonic_seconds() + INHIBITED_S
        finally:
            del self._warming[warm_up.name]
            log.duration_s = self._clock.monotonic_seconds() - begun_s
            self._cancel(warm_up.name, choice, log, LEAVES)
            if not ready:
                self._bookings.release(choice)
        return ready


def name_of(answer: Answer) -> str:
    """The name of an answer's next attempt."""
    return f"{answer.request.request_id}.{len(answer.logs) + 1}"


def _final(answer: Answer, attempt: Attempt) -> bool:
    """Whether nothing is left to go on with: the answer is complete, or its client has gone."""
    return attempt.ended and (attempt.failure is None or answer.interruption is not None)


async def _stopped(
    warming: "asyncio.Task[Choice | None]", ending: "asyncio.Task[PanalError | None]"
) -> Choice | None:
    """Both tasks are over; the replica that was booked, if any. A mistake of ours is told in the log."""
    warming.cancel()
    ending.cancel()
    await asyncio.wait({warming, ending})
    for task in (warming, ending):
        if not task.cancelled() and (mistake := task.exception()) is not None:
            log.error("a hand-over failed", exc_info=mistake, extra=fields(action="hand_over_failed"))
    return None if warming.cancelled() or warming.exception() is not None else warming.result()
