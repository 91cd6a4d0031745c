"""What the ledger is written from, and what it holds. Durations are whole microseconds (``_us``)."""

from enum import StrEnum

import msgspec

from panal.core.ids import ApiKeyId, NodeId, PrincipalId, ProjectId, RequestId, TenantId


class Outcome(StrEnum):
    """How a request ended for its client. The value is stored."""

    COMPLETE = "complete"
    CUT = "cut"
    """The answer broke after its beginning was sent."""
    CLIENT_GONE = "client_gone"
    FAILED = "failed"
    """Nothing of an answer was sent: every attempt failed, or none could be made."""
    REFUSED = "refused"
    """The caller's own mistake, found by us or by the engine."""


class AttemptOutcome(StrEnum):
    """How one attempt ended. The value is stored."""

    COMPLETE = "complete"
    HANDED_OVER = "handed_over"
    """The node was leaving and another one went on."""
    LOST = "lost"
    FAILED = "failed"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """We stopped it: the client had gone, or another attempt was faster."""


class AttemptMade(msgspec.Struct, frozen=True, gc=False):
    """One attempt as the gateway saw it.

    ``prompt_tokens`` were evaluated and ``completion_tokens`` made by the node, useful or not;
    ``delivered_tokens`` of the latter went to the client.
    """

    number: int
    node_id: NodeId
    outcome: AttemptOutcome
    prompt_tokens: int
    completion_tokens: int
    delivered_tokens: int
    duration_us: int


class UsageRecord(msgspec.Struct, frozen=True, gc=False):
    """What one request costs its principal. The request's id makes writing it again harmless.

    Token counts are what the client pays for (see ``panal.ledger.settlement``). ``partial`` marks an
    answer that is paid for without being whole. ``attempts`` counts tries; it never multiplies tokens.
    ``name_used`` is what the client called the model, where that is not ``model``, its own name.
    """

    request_id: RequestId
    tenant_id: TenantId
    project_id: ProjectId
    principal_id: PrincipalId
    key_id: ApiKeyId
    model: str
    route: str
    outcome: Outcome
    error_code: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    estimated: bool
    partial: bool
    attempts: int
    queued_us: int
    first_token_us: int | None
    total_us: int
    created_utc_us: int
    name_used: str = ""
    resumes: int = 0
    """How often the answer went on on another node after it had begun."""


class Contribution(msgspec.Struct, frozen=True, gc=False):
    """What one node did in one attempt. Request id and attempt number make writing it again harmless.

    ``useful_tokens`` of ``completion_tokens`` reached the client.
    """

    request_id: RequestId
    attempt: int
    tenant_id: TenantId
    project_id: ProjectId
    principal_id: PrincipalId
    node_id: NodeId
    model: str
    outcome: AttemptOutcome
    prompt_tokens: int
    completion_tokens: int
    useful_tokens: int
    duration_us: int
    created_utc_us: int


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """One finished request in the ledger: one usage record and a contribution for each attempt."""

    usage: UsageRecord
    contributions: tuple[Contribution, ...]
