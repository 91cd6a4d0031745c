"""Usage: who used what. Users see their own, operators all of their tenant."""

from dataclasses import dataclass

import msgspec

from panal.core.ids import PrincipalId
from panal.core.principals import Principal, Role
from panal.ledger.values import UsageRecord
from panal.management.means import PAGE_ITEMS, Means, Page, has, page_items, require


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """``since <= created < until``, in seconds UTC; empty fields choose everything."""

    principal_id: str = ""
    model: str = ""
    since_utc_s: float | None = None
    until_utc_s: float | None = None


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    request: str
    project: str
    principal: str
    key: str
    model: str
    route: str
    outcome: str
    error_code: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    estimated: bool
    partial: bool
    attempts: int
    queued_s: float
    first_token_s: float | None
    total_s: float
    created_utc_s: float
    resumes: int


class TotalsView(msgspec.Struct, frozen=True, kw_only=True):
    requests: int
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class UsageOperations:
    def __init__(self, means: Means) -> None:
        self._means = means

    async def list(
        self, actor: Principal, chosen: UsageFilter, *, before: str = "", limit: int = PAGE_ITEMS
    ) -> Page[UsageView]:
        """Newest first. Raises NotAllowed (another's usage needs OPERATOR), StoreError."""
        of = _owner(actor, chosen)
        async with self._means.store.reading() as tx:
            records = await tx.usage.list(
                actor.tenant_id,
                before=before,
                limit=page_items(limit),
                of=of,
                model=chosen.model or None,
                since_utc_us=_us(chosen.since_utc_s),
                until_utc_us=_us(chosen.until_utc_s),
            )
        following = records[-1].request_id if len(records) == page_items(limit) else ""
        return Page([_view(record) for record in records], following)

    async def totals(self, actor: Principal, chosen: UsageFilter) -> TotalsView:
        """Sums. Raises as ``list`` does."""
        of = _owner(actor, chosen)
        async with self._means.store.reading() as tx:
            totals = await tx.usage.totals(
                actor.tenant_id,
                of=of,
                model=chosen.model or None,
                since_utc_us=_us(chosen.since_utc_s),
                until_utc_us=_us(chosen.until_utc_s),
            )
        return TotalsView(
            requests=totals.requests,
            attempts=totals.attempts,
            prompt_tokens=totals.prompt_tokens,
            completion_tokens=totals.completion_tokens,
            cached_tokens=totals.cached_tokens,
        )


def _owner(actor: Principal, chosen: UsageFilter) -> PrincipalId | None:
    if has(actor, Role.OPERATOR):
        return PrincipalId(chosen.principal_id) if chosen.principal_id else None
    if chosen.principal_id not in ("", actor.principal_id):
        require(actor, Role.OPERATOR)
    return actor.principal_id


def _us(moment_utc_s: float | None) -> int | None:
    return None if moment_utc_s is None else round(moment_utc_s * 1_000_000)


def _view(record: UsageRecord) -> UsageView:
    return UsageView(
        request=record.request_id,
        project=record.project_id,
        principal=record.principal_id,
        key=record.key_id,
        model=record.model,
        route=record.route,
        outcome=record.outcome.value,
        error_code=record.error_code,
        prompt_tokens=record.prompt_tokens,
        completion_tokens=record.completion_tokens,
        cached_tokens=record.cached_tokens,
        estimated=record.estimated,
        partial=record.partial,
        attempts=record.attempts,
        queued_s=record.queued_us / 1_000_000,
        first_token_s=None if record.first_token_us is None else record.first_token_us / 1_000_000,
        total_s=record.total_us / 1_000_000,
        created_utc_s=record.created_utc_us / 1_000_000,
        resumes=record.resumes,
    )
