"""How fast this node's engine reads prompts and makes tokens: exponential averages of real requests."""

from dataclasses import dataclass

WEIGHT = 0.2
PREFILL_TOKENS_MIN = 8
DECODE_TOKENS_MIN = 4


@dataclass(slots=True)
class MeasuredSpeeds:
    """0 means not measured yet."""

    prefill_tokens_per_s: float = 0.0
    decode_s_per_token: float = 0.0

    def add_prefill(self, prompt_tokens: int, seconds: float) -> None:
        """A prompt that was read alone took so long; short ones say nothing."""
        if prompt_tokens >= PREFILL_TOKENS_MIN and seconds > 0:
            self.prefill_tokens_per_s = _averaged(self.prefill_tokens_per_s, prompt_tokens / seconds)

    def add_decode(self, tokens: int, seconds: float) -> None:
        """So many tokens after the first took so long."""
        if tokens >= DECODE_TOKENS_MIN and seconds > 0:
            self.decode_s_per_token = _averaged(self.decode_s_per_token, seconds / tokens)


def _averaged(old: float, new: float) -> float:
    return new if old == 0.0 else old + WEIGHT * (new - old)
