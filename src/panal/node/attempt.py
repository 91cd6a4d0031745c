"""One attempt: from RunAttempt to its last event."""

import asyncio
import logging
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from panal.core.clock import Clock
from panal.core.errors import (
    AttemptTimeout,
    BadRequest,
    EngineRefused,
    NodeRefused,
    PanalError,
)
from panal.core.requests import Route
from panal.node.answer import AnswerWriter
from panal.node.answer_plan import AnswerPlan, engine_body, plan_of
from panal.node.bodies import BodyParts
from panal.node.embeddings import check_embeddings_request, embeddings_answer
from panal.node.engines.engine import Engine, EngineCall, Json, Resume
from panal.node.limits import AttemptLimits
from panal.node.outbox import Lane, ReaderStalled
from panal.node.speeds import MeasuredSpeeds
from panal.node.usage import CHARACTERS_PER_TOKEN
from panal.protocol.messages import AttemptCounts, BodyPart, Event, RunAttempt, WireError
from panal.protocol.openai.errors import error_body

LATE_USAGE_S_MAX = 2.0
"""An engine may tell its usage so long after the end of its answer; then what was counted has to do."""


@dataclass(slots=True)
class Workplace:
    """What all attempts of a node share. ``in_engine``: how many requests the engine has now."""

    engine: Engine
    slots: asyncio.Semaphore
    speeds: MeasuredSpeeds
    clock: Clock
    log: logging.Logger
    in_engine: int = 0


@dataclass(frozen=True, slots=True)
class AttemptTimes:
    """Monotonic seconds; None where it never came to that. ``asked_s``: when the engine got the request."""

    begun_s: float
    asked_s: float | None
    first_token_s: float | None
    last_token_s: float


class Attempt:
    """Runs once. Every ending, whatever its cause, frees the engine's slot before anything else waits."""

    def __init__(self, run: RunAttempt, lane: Lane, workplace: Workplace) -> None:
        self.run_message = run
        self.lane = lane
        self._workplace = workplace
        self._parts = BodyParts(run)
        self._writer: AnswerWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop_error: WireError | None = None
        self._stopped = False
        self._begun_s = workplace.clock.monotonic_seconds()
        self._asked_s: float | None = None
        self._first_token_s: float | None = None
        self._last_token_s = 0.0
        self._was_paused = False
        self._entered = False
        self.started = False
        """Whether the engine has this request."""
        self.ended = False
        """Whether the engine is free of it again."""
        self.outcome = "failed"

    # --- from the node

    def begin(self, task: asyncio.Task[None]) -> None:
        """The task that runs ``serve``."""
        self._task = task

    def add_part(self, part: BodyPart) -> None:
        self._parts.add(part)

    def stop(self, outcome: str, error: WireError | None) -> None:
        """End now. With an error the gateway is told, without one it is not: it asked for the end itself."""
        if self._stopped or self._task is None or self._task.done():
            return
        self._stopped = True
        self._stop_error = error
        self.outcome = outcome
        self._task.cancel()

    def leave(self) -> None:
        """Tell the gateway that this node gives the machine back; what has not begun ends at once."""
        if not self.started:
            self.stop("leaving", LEAVING)
        elif not self.ended:
            self.lane.put(Event(leaving=True))

    @property
    def tokens_to_read(self) -> int:
        """About how many prompt tokens wait to be read for this attempt."""
        if self._first_token_s is not None or self.ended:
            return 0
        return len(self.run_message.body) // CHARACTERS_PER_TOKEN

    @property
    def times(self) -> AttemptTimes:
        return AttemptTimes(self._begun_s, self._asked_s, self._first_token_s, self._last_token_s)

    def counts(self) -> AttemptCounts:
        """What was made, for the ledger."""
        prompt, completion = self._writer.usage.made() if self._writer is not None else (0, 0)
        return AttemptCounts(
            attempt=self.run_message.attempt,
            model=self._workplace.engine.facts.model,
            prompt_tokens=prompt,
            completion_tokens=completion,
            duration_s=round(self._workplace.clock.monotonic_seconds() - self._begun_s, 6),
            outcome=self.outcome,
        )

    # --- the run itself

    async def serve(self) -> None:
        """The whole attempt; raises nothing but CancelledError when the node itself is torn down."""
        self._entered = True
        try:
            self.outcome, last = await self._guarded()
            self.ended = True
            if last is not None:
                self.lane.put(last)
            await self.lane.empty()
        except ReaderStalled as error:
            self.outcome = "stalled"
            self.lane.put_instead(
                Event(error=WireError(kind="failed", code=error.code, message=error.message))
            )
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            self._tell_stopped()
        finally:
            self.ended = True

    def over(self) -> None:
        """The task is done. One that was stopped before its first step has not told anybody yet."""
        self.ended = True
        if self._stopped and not self._entered:
            self._tell_stopped()

    def _tell_stopped(self) -> None:
        if self._stop_error is not None:
            self.lane.put_instead(Event(error=self._stop_error))
        else:
            self.lane.drop()

    async def _guarded(self) -> tuple[str, Event | None]:
        """The outcome and the last event, with every error turned into one."""
        limits = self._limits()
        try:
            return "finished", await self._answer(limits)
        except EngineRefused as error:
            wire = WireError(
                kind="caller", code=error.code, message=error.message, status=error.status, body=error.body
            )
            return "caller", Event(error=wire)
        except BadRequest as error:
            return "caller", Event(error=_caller_error(error))
        except NodeRefused as error:
            return "refused", Event(error=WireError(kind="refused", code=error.code, message=error.message))
        except ReaderStalled:
            raise
        except PanalError as error:
            return "failed", Event(error=WireError(kind="failed", code=error.code, message=error.message))
        except Exception:  # the boundary to an engine: one attempt fails, the node lives on
            self._workplace.log.exception("attempt %s failed unexpectedly", self.run_message.attempt)
            wire = WireError(kind="failed", code="internal_error", message="the node failed unexpectedly")
            return "failed", Event(error=wire)
        finally:
            limits.close()

    def _limits(self) -> AttemptLimits:
        run = self.run_message
        return AttemptLimits(
            first_token_s=run.first_token_s_max,
            between_tokens_s=run.between_tokens_s_max,
            total_s=run.deadline_s,
            expired=self._expired,
        )

    def _expired(self, error: AttemptTimeout) -> None:
        self.stop("timeout", WireError(kind="timeout", code=error.limit, message=error.message))

    async def _answer(self, limits: AttemptLimits) -> Event:
        body = await self._parts.whole()
        facts = self._workplace.engine.facts
        plan = plan_of(self.run_message, body, agent_stops=facts.resume is Resume.TOKEN_IDS)
        if plan.route not in facts.routes:
            raise NodeRefused(f"this replica does not serve the route '{plan.route.value}'")
        async with self._workplace.slots:
            self.started = True
            self._workplace.in_engine += 1
            try:
                if plan.route is Route.EMBEDDINGS:
                    return await self._embeddings(body)
                return await self._text(plan, body, limits)
            finally:
                self._workplace.in_engine -= 1

    async def _embeddings(self, body: Json) -> Event:
        check_embeddings_request(body)
        self._asked_s = self._workplace.clock.monotonic_seconds()
        answer = await self._workplace.engine.embed(self._call(Route.EMBEDDINGS, body))
        data, usage = embeddings_answer(answer, body, self.run_message.model)
        return Event(data=data, finish="stop", usage=usage)

    async def _text(self, plan: AnswerPlan, body: Json, limits: AttemptLimits) -> Event:
        writer = self._writer = AnswerWriter(plan)
        call = self._call(plan.route, engine_body(plan, body))
        single = body.get("n") in (None, 1)
        try:
            async with asyncio.timeout(None) as patience:
                await self._read(call, writer, limits, patience if single else None)
        except TimeoutError:
            if not patience.expired():
                raise
        self._note_decode(writer)
        return writer.end()

    async def _read(
        self, call: EngineCall, writer: AnswerWriter, limits: AttemptLimits, patience: asyncio.Timeout | None
    ) -> None:
        """All that the engine says. Once nothing but its usage can follow, ``patience`` begins to run out."""
        clock = self._workplace.clock
        asked_s = self._asked_s = clock.monotonic_seconds()
        alone = self._workplace.in_engine == 1
        async with aclosing(self._workplace.engine.generate(call)) as deltas:
            async for delta in deltas:
                now_s = clock.monotonic_seconds()
                event = writer.write(delta, now_s)
                if delta.tokens or delta.text or delta.opaque or delta.finish:
                    limits.progress()
                    self._last_token_s = now_s
                    if self._first_token_s is None:
                        self._first_token_s = now_s
                        if alone:
                            self._workplace.speeds.add_prefill(writer.usage.prompt_to_read, now_s - asked_s)
                if event is not None:
                    self.lane.put(event)
                if writer.done:
                    break
                if self.lane.full:
                    await self._wait_for_reader(limits)
                if patience is not None and patience.when() is None and writer.complete:
                    limits.pause()
                    patience.reschedule(asyncio.get_running_loop().time() + LATE_USAGE_S_MAX)

    def _call(self, route: Route, body: Json) -> EngineCall:
        return EngineCall(route, body, self.run_message.emitted, self.run_message.cache_salt)

    async def _wait_for_reader(self, limits: AttemptLimits) -> None:
        self._was_paused = True
        limits.pause()
        await self.lane.room()
        limits.resume()

    def _note_decode(self, writer: AnswerWriter) -> None:
        if self._first_token_s is not None and not self._was_paused:
            tokens = writer.usage.made()[1] - 1
            self._workplace.speeds.add_decode(tokens, self._last_token_s - self._first_token_s)


LEAVING = WireError(kind="leaving", code="node_leaving", message="the node gives the machine back")


def _caller_error(error: BadRequest) -> WireError:
    body = error_body(error.message, kind="invalid_request_error", code=error.code, param=error.param)
    return WireError(
        kind="caller", code=error.code, message=error.message, status=400, body=msgspec.json.encode(body)
    )
