"""Who made an answer: the attempts of one request, each with the node's work."""

import msgspec

from panal.core.errors import NotFound
from panal.core.ids import RequestId
from panal.core.principals import Principal, Role
from panal.ledger.values import Contribution
from panal.management.means import Means, require


class ContributionView(msgspec.Struct, frozen=True, kw_only=True):
    """``completion_tokens`` were made by the node, ``useful_tokens`` of them reached the client."""

    request: str
    attempt: int
    node: str
    outcome: str
    prompt_tokens: int
    completion_tokens: int
    useful_tokens: int
    duration_s: float


class ContributionOperations:
    def __init__(self, means: Means) -> None:
        self._means = means

    async def of_request(self, actor: Principal, request_id: str) -> list[ContributionView]:
        """Needs OPERATOR. Raises NotAllowed, NotFound (none, or another tenant's), StoreError."""
        require(actor, Role.OPERATOR)
        async with self._means.store.reading() as tx:
            made = await tx.contributions.of_request(RequestId(request_id))
        own = [_view(each) for each in made if each.tenant_id == actor.tenant_id]
        if not own:
            raise NotFound("No node has made anything of such a request.")
        return own


def _view(made: Contribution) -> ContributionView:
    return ContributionView(
        request=made.request_id,
        attempt=made.attempt,
        node=made.node_id,
        outcome=made.outcome.value,
        prompt_tokens=made.prompt_tokens,
        completion_tokens=made.completion_tokens,
        useful_tokens=made.useful_tokens,
        duration_s=made.duration_us / 1_000_000,
    )
