"""Limits in the management API: /api/v1/limits."""

import msgspec

from panal.core.errors import BadRequest
from panal.core.principals import Role
from panal.gateway.endpoints import Call, Endpoint
from panal.management import Management, Page
from panal.management.limits import LimitView
from panal.policy.limits import LimitKind


class LimitsBody(msgspec.Struct, forbid_unknown_fields=True):
    """The limits to be set; what is left out stays as it is."""

    requests_per_minute: int | None = None
    requests_per_day: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrency: int | None = None


def limit_endpoints(management: Management) -> list[Endpoint]:
    """Set, list and clear limits of a key, a project or a tenant, by its id."""
    limits = management.limits

    async def listing(call: Call) -> Page[LimitView]:
        return await limits.list(call.caller, call.query.get("subject", ""))

    async def change(call: Call) -> Page[LimitView]:
        body = call.read(LimitsBody)
        amounts = {kind: getattr(body, kind.value) for kind in LimitKind}
        given = {kind: amount for kind, amount in amounts.items() if amount is not None}
        return await limits.set(call.caller, call.path["subject"], given)

    async def clear(call: Call) -> Page[LimitView]:
        return await limits.clear(call.caller, call.path["subject"], _kinds(call.query.get("limit")))

    path = "/api/v1/limits"
    of_one = path + "/{subject}"
    gives = Page[LimitView]
    only = {"subject": "only the limits of this key, project or tenant"}
    one = {"limit": "only this limit, such as tokens_per_minute; without it all"}
    return [
        Endpoint("GET", path, Role.USER, listing, "Limits", gives=gives, query=only),
        Endpoint("PUT", of_one, Role.ADMIN, change, "Set limits", LimitsBody, gives),
        Endpoint("DELETE", of_one, Role.ADMIN, clear, "Clear limits", gives=gives, query=one),
    ]


def _kinds(text: str | None) -> list[LimitKind]:
    if text is None:
        return list(LimitKind)
    try:
        return [LimitKind(text)]
    except ValueError:
        known = ", ".join(kind.value for kind in LimitKind)
        raise BadRequest(f"'limit' must be one of {known}.", param="limit") from None
