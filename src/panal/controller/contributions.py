"""What nodes count themselves, as the ledger's half that only they know."""

from panal.core.ids import PrincipalId, RequestId
from panal.core.records import NodeRecord
from panal.ledger.values import AttemptOutcome, Contribution
from panal.protocol.messages import AttemptCounts

ATTEMPT_DIGITS_MAX = 9
REQUEST_ID_CHARACTERS_MAX = 64


def contribution(node: NodeRecord, counts: AttemptCounts, now_utc_us: int) -> Contribution | None:
    """A node's own counts as the ledger's half that only it knows; None for a malformed attempt name."""
    request_id, _dot, number = counts.attempt.rpartition(".")
    if not (number.isascii() and number.isdecimal() and len(number) <= ATTEMPT_DIGITS_MAX):
        return None
    if not 0 < len(request_id) <= REQUEST_ID_CHARACTERS_MAX:
        return None
    try:
        outcome = AttemptOutcome(counts.outcome)
    except ValueError:
        outcome = AttemptOutcome.FAILED
    return Contribution(
        request_id=RequestId(request_id),
        attempt=int(number),
        tenant_id=node.tenant_id,
        project_id=node.project_id,
        principal_id=PrincipalId(""),
        node_id=node.node_id,
        model=counts.model,
        outcome=outcome,
        prompt_tokens=counts.prompt_tokens,
        completion_tokens=counts.completion_tokens,
        useful_tokens=0,
        duration_us=round(counts.duration_s * 1_000_000),
        created_utc_us=now_utc_us,
    )
