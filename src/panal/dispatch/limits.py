"""Limits of one request on the path."""

from dataclasses import dataclass

from panal.protocol.messages import HOLD_BYTES_MAX
from panal.scheduling.continuation import ATTEMPTS_MAX, RESUMES_MAX, Budgets


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of a request in seconds, and its budgets."""

    first_token_s_max: float = 60.0
    between_tokens_s_max: float = 30.0
    recovery_s_max: float = 10.0
    """How long a broken answer waits for a replica that can take it over."""
    attempts_max: int = ATTEMPTS_MAX
    resumes_max: int = RESUMES_MAX
    comment_each_s: float = 10.0
    """A stream with nothing to say gets a comment line so often; the first one begins the response."""
    hold_bytes_max: int = HOLD_BYTES_MAX
    """What a node holds back of an answer that could not be continued."""

    @property
    def budgets(self) -> Budgets:
        return Budgets(self.attempts_max, self.resumes_max)
