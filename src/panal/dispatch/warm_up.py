"""One warm-up of a hand-over, as the gateway follows it; see dispatch/hand_over.py."""

import asyncio
from collections.abc import Callable

from panal.core.errors import AttemptTimeout, BusError, NodeLost, PanalError
from panal.core.ids import NodeKey
from panal.dispatch.answer import failure_of
from panal.dispatch.outcome import WARM_UP, AttemptLog, attempt_outcome_of
from panal.ledger.values import AttemptOutcome
from panal.protocol.messages import Frame
from panal.scheduling.routing import Choice


class WarmUp:
    """One warm-up on a booked replica."""

    def __init__(self, name: str, choice: Choice, log: AttemptLog) -> None:
        log.warm_up, log.useful, log.outcome, log.cause = True, False, AttemptOutcome.CANCELLED, WARM_UP
        self.name = name
        self.choice = choice
        self.log = log
        self._ready: asyncio.Future[PanalError | None] = asyncio.get_running_loop().create_future()

    @property
    def key(self) -> NodeKey:
        """The node whose frames count."""
        return self.choice.replica.key

    def on_frame(self, frame: Frame) -> None:
        """The first token, or an error, is all that is wanted."""
        for event in frame.events:
            if event.usage is not None:
                self.log.prompt_tokens = event.usage.prompt_tokens
            self.log.tokens += event.tokens
            if event.error is not None:
                self.fail(failure_of(event.error))
            elif event.tokens or event.text or event.finish is not None:
                self._settle(None)

    def fail(self, failure: PanalError) -> None:
        """It will come to nothing."""
        self._settle(failure)

    def _settle(self, failure: PanalError | None) -> None:
        if not self._ready.done():
            self._ready.set_result(failure)

    async def warm(self, begin: Callable[[], None], first_token_s_max: float) -> PanalError | None:
        """Begin, and return at the first token with None, or with the reason why there will be none."""
        try:
            begin()
            async with asyncio.timeout(first_token_s_max):
                failure = await self._ready
        except BusError as error:
            failure = NodeLost(error.message)
        except TimeoutError:
            failure = AttemptTimeout("first_token", first_token_s_max)
        if failure is not None:
            self.log.outcome, self.log.cause = attempt_outcome_of(failure), failure.code
        return failure
