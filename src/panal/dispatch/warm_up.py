"""A planned hand-over: the next node reads the answer so far while the leaving one still speaks.

The warm-up is an attempt like any other, but what it says is thrown away: its first token shows that the
prompt and the answer are in the new engine's prefix cache. Then the old attempt is fenced, and the answer
goes on from its true last token, which is a short read for the new engine. So nothing needs to be compared
or skipped, and a node that does not cache costs a pause, never a character (docs/adr/0019).
"""

import asyncio
from collections.abc import Callable

from panal.core.errors import AttemptTimeout, BusError, NodeLost, PanalError
from panal.core.ids import NodeKey
from panal.dispatch.answer import failure_of
from panal.dispatch.outcome import AttemptLog
from panal.ledger.values import AttemptOutcome
from panal.protocol.messages import Frame
from panal.scheduling.routing import Choice

WARM_UP = "warm_up"


class WarmUp:
    """One warm-up on a booked replica."""

    def __init__(self, name: str, choice: Choice, log: AttemptLog) -> None:
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
        self.log.outcome = AttemptOutcome.FAILED if failure is not None else AttemptOutcome.CANCELLED
        self.log.cause = failure.code if failure is not None else WARM_UP
        return failure
