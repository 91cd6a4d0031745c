"""Who pays for an answer, and who made it: one rule on all routes.

A client pays for what it was given. Where the answer is whole, or at least one token of it reached the
client, it pays the prompt once and the tokens delivered; otherwise it pays nothing. Hence:

- the client left after ten tokens: the prompt and ten tokens, marked partial;
- the answer was cut after ten tokens: the same, for the client has them;
- the node died, or the client left, before the first token: nothing;
- a node died after ten tokens and another one finished: the whole answer, once;
- a refused request: nothing.

A node is credited with the work that it really did, whoever pays for it, and apart from that with the
tokens that were of use to the client. Useful tokens of a request add up to the tokens shown.
"""

from collections.abc import Sequence

from panal.core.requests import InferenceRequest, Usage
from panal.ledger.values import AttemptMade, Contribution, Outcome, Settlement, UsageRecord

MODEL_CHARACTERS_MAX = 256
CODE_CHARACTERS_MAX = 64

_NOTHING = Usage()


def charged(outcome: Outcome, shown: Usage) -> Usage:
    """The tokens that the client pays for, given what it was shown."""
    if outcome is Outcome.COMPLETE:
        return shown
    if outcome in (Outcome.CUT, Outcome.CLIENT_GONE) and shown.completion_tokens > 0:
        return shown
    return _NOTHING


def useful_tokens(attempts: Sequence[AttemptMade], shown_tokens: int) -> list[int]:
    """For each attempt the tokens of use to the client; together ``shown_tokens``, if any attempt is given.

    Counts of delivered tokens and the count shown can differ by a few, because engines count special
    tokens in their own ways. The last attempt that delivered anything bears the difference.
    """
    useful = [attempt.delivered_tokens for attempt in attempts]
    if not useful:
        return useful
    difference = shown_tokens - sum(useful)
    if difference > 0:
        bearer = max((place for place, tokens in enumerate(useful) if tokens > 0), default=len(useful) - 1)
        useful[bearer] += difference
    for place in reversed(range(len(useful))):
        if difference >= 0:
            break
        taken = min(useful[place], -difference)
        useful[place] -= taken
        difference += taken
    return useful


def _word(text: str, characters_max: int) -> str:
    """A client's text as a name in the ledger: bounded, and without marks that databases refuse."""
    return text[:characters_max].replace("\0", "")


def settle(
    request: InferenceRequest,
    outcome: Outcome,
    shown: Usage,
    attempts: Sequence[AttemptMade],
    *,
    queued_us: int,
    first_token_us: int | None,
    total_us: int,
    error_code: str = "",
    resumes: int = 0,
) -> Settlement:
    """The ledger's entries of a finished request.

    ``shown`` is what reached the client: the prompt once and all completion tokens delivered.
    ``first_token_us`` is None when no token reached it; both it and ``total_us`` count from arrival.
    """
    paid = charged(outcome, shown)
    principal = request.principal
    model = _word(request.own_model, MODEL_CHARACTERS_MAX)
    name_used = _word(request.model, MODEL_CHARACTERS_MAX)
    created_utc_us = request.created_utc_s * 1_000_000
    usage = UsageRecord(
        request_id=request.request_id,
        tenant_id=principal.tenant_id,
        project_id=principal.project_id,
        principal_id=principal.principal_id,
        key_id=principal.key_id,
        model=model,
        route=request.route,
        outcome=outcome,
        error_code=_word(error_code, CODE_CHARACTERS_MAX),
        prompt_tokens=paid.prompt_tokens,
        completion_tokens=paid.completion_tokens,
        cached_tokens=paid.cached_tokens,
        estimated=paid.estimated,
        partial=paid is not _NOTHING and outcome is not Outcome.COMPLETE,
        attempts=len(attempts),
        queued_us=queued_us,
        first_token_us=first_token_us,
        total_us=total_us,
        created_utc_us=created_utc_us,
        name_used="" if name_used == model else name_used,
        resumes=resumes,
    )
    useful = useful_tokens(attempts, shown.completion_tokens)
    contributions = tuple(
        Contribution(
            request_id=request.request_id,
            attempt=attempt.number,
            tenant_id=principal.tenant_id,
            project_id=principal.project_id,
            principal_id=principal.principal_id,
            node_id=attempt.node_id,
            model=model,
            outcome=attempt.outcome,
            prompt_tokens=attempt.prompt_tokens,
            completion_tokens=max(attempt.completion_tokens, tokens),
            useful_tokens=tokens,
            duration_us=attempt.duration_us,
            created_utc_us=created_utc_us,
        )
        for attempt, tokens in zip(attempts, useful, strict=True)
    )
    return Settlement(usage=usage, contributions=contributions)
