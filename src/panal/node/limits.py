"""The time limits of one attempt, watched with one lazy timer instead of one per token."""

import asyncio
from collections.abc import Callable

from panal.core.errors import AttemptTimeout


class AttemptLimits:
    """First token, then between tokens, and the total. ``expired`` is called once, with the limit's name.

    Time that an attempt waits for its reader does not count as the engine's.
    """

    def __init__(
        self,
        *,
        first_token_s: float,
        between_tokens_s: float,
        total_s: float,
        expired: Callable[[AttemptTimeout], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._expired = expired
        self._between_tokens_s = between_tokens_s
        self._total_s = total_s
        self._limit_name = "first_token"
        self._limit_s = first_token_s
        self._since_s = self._loop.time()
        self._end_s = self._since_s + total_s
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    def progress(self) -> None:
        """The engine made something."""
        if self._limit_name == "first_token":
            self._limit_name = "between_tokens"
            self._limit_s = self._between_tokens_s
            self._since_s = self._loop.time()
            self._arm()
        self._since_s = self._loop.time()

    def pause(self) -> None:
        """The engine is not read at the moment: only the total goes on."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._since_s = self._loop.time()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.close()
        self._timer = self._loop.call_at(min(self._since_s + self._limit_s, self._end_s), self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        if now_s >= self._end_s:
            self._expired(AttemptTimeout("total", self._total_s))
            return
        if self._paused:
            self._since_s = now_s
        elif now_s >= self._since_s + self._limit_s:
            self._expired(AttemptTimeout(self._limit_name, self._limit_s))
            return
        self._arm()
