"""How many tokens an answer used, from what the engine says and from what was seen. Pure."""

from panal.node.engines.engine import Delta, Json
from panal.protocol.messages import Emitted, TokenUsage

HIDDEN_TOKENS_MAX = 2
"""An engine may count so many tokens that no chunk shows, such as the end of the answer."""

CHARACTERS_PER_TOKEN = 4


class UsageTally:
    """Counts one attempt and adds what earlier attempts made: the prompt once, all that was made."""

    def __init__(self, emitted: Emitted | None, prompt_characters: int) -> None:
        self._before = emitted if emitted is not None else Emitted()
        self._prompt_characters = prompt_characters
        self._counted = 0
        self._exact = True
        self._opaque = False
        self._said = TokenUsage()
        self.raw: Json = {}
        """The engine's last usage as it wrote it."""

    def add(self, delta: Delta) -> None:
        """Count one step."""
        self._counted += delta.tokens
        if delta.opaque:
            self._opaque = True
        if delta.text and delta.token_ids is None:
            self._exact = False
        said = delta.usage
        if said is not None:
            self._said = TokenUsage(
                prompt_tokens=said.prompt_tokens or self._said.prompt_tokens,
                completion_tokens=said.completion_tokens or self._said.completion_tokens,
                cached_tokens=said.cached_tokens or self._said.cached_tokens,
            )
        if delta.raw_usage:
            self.raw = delta.raw_usage

    @property
    def prompt_known(self) -> bool:
        """Whether the number of prompt tokens is known and not estimated."""
        return bool(self._before.prompt_tokens or self._said.prompt_tokens)

    def made(self) -> tuple[int, int]:
        """Prompt and completion tokens of this attempt alone, as the engine worked them."""
        return self._said.prompt_tokens, self._completion()[0]

    @property
    def prompt_to_read(self) -> int:
        """Prompt tokens that the engine had to read anew; 0 where unknown."""
        return max(self._said.prompt_tokens - self._said.cached_tokens, 0)

    def total(self) -> TokenUsage:
        """All attempts together. ``estimated`` where the engine left something out."""
        completion, completion_known = self._completion()
        prompt = self._before.prompt_tokens
        if not prompt and self._said.prompt_tokens:
            prompt = max(self._said.prompt_tokens - self._before.completion_tokens, 1)
        prompt_known = bool(prompt)
        if not prompt_known:
            prompt = max(1, self._prompt_characters // CHARACTERS_PER_TOKEN)
        return TokenUsage(
            prompt_tokens=prompt,
            completion_tokens=self._before.completion_tokens + completion,
            cached_tokens=min(self._said.cached_tokens, prompt),
            estimated=not (completion_known and prompt_known),
        )

    def _completion(self) -> tuple[int, bool]:
        """Tokens of this attempt, and whether that is known. Ids that were seen beat the engine's word."""
        said = self._said.completion_tokens
        if self._exact and not self._opaque and self._counted:
            plausible = self._counted <= said <= self._counted + HIDDEN_TOKENS_MAX
            return (said if plausible else self._counted), True
        if said:
            return max(said, self._counted), True
        return self._counted, self._counted == 0
