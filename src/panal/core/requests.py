"""A request as the path sees it, and what it used.

Structs, because one of each is made for every request: a frozen dataclass of many fields costs ten times
as much to make.
"""

from enum import StrEnum

import msgspec

from panal.core.ids import RequestId
from panal.core.nodes import DataClass
from panal.core.principals import Principal


class Route(StrEnum):
    """The inference routes. The value travels."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one answer as shown to the client."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class InferenceRequest(msgspec.Struct, frozen=True, gc=False):
    """One call of a client. ``body`` is the client's JSON, unchanged; the rest was read from it.

    ``resumable`` is False where a cut answer cannot be continued (see docs/resume.md): such a
    request is restarted unseen or ends with an error. ``max_tokens`` None means the engine's limit.
    ``model`` is the name that the client used, as it wrote it; it is what the client is told.
    """

    request_id: RequestId
    response_id: str
    created_utc_s: int
    route: Route
    model: str
    stream: bool
    include_usage: bool
    body: bytes
    principal: Principal
    data_class: DataClass
    residency: frozenset[str]
    deadline_monotonic_s: float
    total_s_max: float
    traceparent: str
    prompt_tokens_estimate: int
    max_tokens: int | None = None
    resumable: bool = True
    tools: bool = False
    """Whether the answer may call tools, whose calls only the engine's own chat route reads."""
    tools_whole: bool = False
    """Whether the answer is held back from its first tool call on, until it is complete."""
    show_nodes: bool = False
    """Whether the stream carries comments that name the node which speaks."""
    serves: str = ""
    """The model's own name, where the client used another one or wrote it in another way."""

    @property
    def own_model(self) -> str:
        """The name of the model that serves, in routing, metrics and the ledger."""
        return self.serves or self.model
