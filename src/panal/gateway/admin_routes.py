"""The management API under /api/v1: HTTP around the operations of management, nothing else."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from panal.core.errors import BadRequest
from panal.core.nodes import DataClass, NodeClass
from panal.core.principals import Principal, Role
from panal.gateway import openapi
from panal.gateway.alias_routes import alias_endpoints
from panal.gateway.endpoints import Call, Endpoint
from panal.gateway.fleet_view import FleetView, fleet_view
from panal.gateway.gateway import Gateway
from panal.gateway.limit_routes import limit_endpoints
from panal.gateway.process_routes import process_endpoints
from panal.identity.join_tokens import TokenWish
from panal.management import Management, Page
from panal.management.api_keys import KeyView, KeyWish, NewKey
from panal.management.audit import AuditView, ChainView
from panal.management.contributions import ContributionView
from panal.management.join_tokens import NewToken, TokenView
from panal.management.nodes import NodeView, WakeView
from panal.management.usage import PruneView, TotalsView, UsageFilter, UsageView
from panal.telemetry.exchange import Shown

PAGE_ITEMS_MAX = 1000
PAGING = {"after": "the 'next' of the page before", "limit": "items of a page, at most 1000"}


class TokenBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a machine that joins with the token becomes. ``life_s`` in seconds, at most a day."""

    node_class: str = "desktop"
    site: str = ""
    country: str = ""
    data_class: str = "internal"
    uses: int = 1
    life_s: int = 3600
    approve: bool = False


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new key; what is left out is as the maker's own. ``life_s`` in seconds, None: no end."""

    name: str = ""
    role: str = "user"
    data_class: str | None = None
    residency: list[str] | None = None
    life_s: int | None = None
    principal_id: str = ""
    new_principal: str = ""
    models: list[str] | None = None
    """Names of models and aliases that it may use; an empty list: all."""


class KeyModelsBody(msgspec.Struct, forbid_unknown_fields=True):
    """The names that a key may use; an empty list: all."""

    models: list[str]


class ToolBufferingBody(msgspec.Struct, forbid_unknown_fields=True):
    """How the key's tool calls are sent where a request does not say: stream | whole."""

    value: str


class ReasonBody(msgspec.Struct, forbid_unknown_fields=True):
    """Why; shown to whoever looks at the node."""

    reason: str = ""


class PruneBody(msgspec.Struct, forbid_unknown_fields=True):
    """Records of before that moment go, UTC seconds; with ``dry_run`` they are only counted."""

    before_utc_s: float
    dry_run: bool = False


class Who(msgspec.Struct):
    """The caller, as panal knows them."""

    principal: str
    tenant: str
    project: str
    role: str
    data_class: str


def admin_endpoints(management: Management, gateway: Gateway, shown: Shown) -> list[Endpoint]:
    """All of /api/v1."""
    endpoints = [
        *_token_endpoints(management),
        *_node_endpoints(management, gateway),
        *_key_endpoints(management),
        *limit_endpoints(management),
        *alias_endpoints(management),
        *process_endpoints(shown),
        *_record_endpoints(management),
        Endpoint("GET", "/api/v1/whoami", Role.USER, _who, "Who the key belongs to", gives=Who),
    ]

    async def document(_call: Call) -> dict[str, Any]:
        return openapi.document(endpoints)

    endpoints.append(
        Endpoint("GET", "/api/v1/openapi.json", Role.USER, document, "This API as an OpenAPI document")
    )
    return endpoints


async def _who(call: Call) -> Who:
    caller = call.caller
    return Who(
        caller.principal_id,
        caller.tenant_id,
        caller.project_id,
        caller.role.value,
        caller.data_class.label,
    )


def _token_endpoints(management: Management) -> list[Endpoint]:
    tokens = management.join_tokens

    async def create(call: Call) -> NewToken:
        body = call.read(TokenBody)
        wish = TokenWish(
            node_class=_one_of(NodeClass, body.node_class, "node_class"),
            site=body.site,
            country=body.country,
            data_class=_data_class(body.data_class),
            uses=body.uses,
            life_s=body.life_s,
            approve=body.approve,
        )
        return await tokens.create(call.caller, wish)

    async def listing(call: Call) -> Page[TokenView]:
        return await tokens.list(call.caller, after=call.query.get("after", ""), limit=_limit(call))

    async def revoke(call: Call) -> TokenView:
        return await tokens.revoke(call.caller, call.path["id"])

    path = "/api/v1/tokens"
    return [
        Endpoint("POST", path, Role.ADMIN, create, "Make a join token", TokenBody, NewToken, 201),
        Endpoint("GET", path, Role.OPERATOR, listing, "Join tokens", gives=Page[TokenView], query=PAGING),
        Endpoint("DELETE", path + "/{id}", Role.ADMIN, revoke, "Revoke a join token", gives=TokenView),
    ]


def _node_endpoints(management: Management, gateway: Gateway) -> list[Endpoint]:
    nodes = management.nodes

    async def listing(call: Call) -> Page[NodeView]:
        return await nodes.list(call.caller, after=call.query.get("after", ""), limit=_limit(call))

    async def show(call: Call) -> NodeView:
        return await nodes.show(call.caller, call.path["name"])

    async def live(call: Call) -> FleetView:
        return fleet_view(gateway, call.caller)

    def change(
        operation: Callable[[Principal, str, str], Awaitable[NodeView]],
    ) -> Callable[[Call], Awaitable[NodeView]]:
        async def handle(call: Call) -> NodeView:
            return await operation(call.caller, call.path["name"], call.read(ReasonBody).reason)

        return handle

    async def approve(call: Call) -> NodeView:
        return await nodes.approve(call.caller, call.path["name"])

    async def uncordon(call: Call) -> NodeView:
        return await nodes.uncordon(call.caller, call.path["name"])

    async def wake(call: Call) -> WakeView:
        return await nodes.wake(call.caller, call.path["name"])

    path = "/api/v1/nodes"
    changes = [
        ("approve", approve, Role.ADMIN, "Let a pending node in", None),
        ("cordon", change(nodes.cordon), Role.ADMIN, "No new work for a node", ReasonBody),
        ("uncordon", uncordon, Role.ADMIN, "New work again", None),
        ("drain", change(nodes.drain), Role.ADMIN, "Hand over what runs, then rest", ReasonBody),
        ("revoke", change(nodes.revoke), Role.ADMIN, "Cut a node off for good", ReasonBody),
    ]
    return [
        Endpoint("GET", path, Role.OPERATOR, listing, "Nodes", gives=Page[NodeView], query=PAGING),
        Endpoint("GET", "/api/v1/fleet", Role.USER, live, "Nodes and replicas as seen now", gives=FleetView),
        Endpoint("GET", path + "/{name}", Role.OPERATOR, show, "One node, by name or id", gives=NodeView),
        *(
            Endpoint("POST", f"{path}/{{name}}/{verb}", role, handle, text, takes, NodeView)
            for verb, handle, role, text, takes in changes
        ),
        Endpoint(
            "POST",
            path + "/{name}/wake",
            Role.OPERATOR,
            wake,
            "Ask its neighbours to wake it",
            gives=WakeView,
        ),
    ]


def _key_endpoints(management: Management) -> list[Endpoint]:
    keys = management.api_keys

    async def create(call: Call) -> NewKey:
        body = call.read(KeyBody)
        wish = KeyWish(
            name=body.name,
            role=_one_of(Role, body.role, "role"),
            data_class=None if body.data_class is None else _data_class(body.data_class),
            residency=None if body.residency is None else frozenset(body.residency),
            life_s=body.life_s,
            principal_id=body.principal_id,
            new_principal=body.new_principal,
            models=None if body.models is None else frozenset(body.models),
        )
        return await keys.create(call.caller, wish)

    async def listing(call: Call) -> Page[KeyView]:
        return await keys.list(call.caller, after=call.query.get("after", ""), limit=_limit(call))

    async def revoke(call: Call) -> KeyView:
        return await keys.revoke(call.caller, call.path["id"])

    async def restrict(call: Call) -> KeyView:
        return await keys.set_models(call.caller, call.path["id"], call.read(KeyModelsBody).models)

    async def buffering(call: Call) -> KeyView:
        return await keys.set_tool_buffering(call.caller, call.path["id"], call.read(ToolBufferingBody).value)

    path = "/api/v1/keys"
    return [
        Endpoint(
            "POST", path, Role.USER, create, "Make an API key; its secret is shown once", KeyBody, NewKey, 201
        ),
        Endpoint("GET", path, Role.USER, listing, "API keys", gives=Page[KeyView], query=PAGING),
        Endpoint("DELETE", path + "/{id}", Role.USER, revoke, "Revoke an API key", gives=KeyView),
        Endpoint(
            "PUT",
            path + "/{id}/models",
            Role.ADMIN,
            restrict,
            "Names that it may use",
            KeyModelsBody,
            KeyView,
        ),
        Endpoint(
            "PUT",
            path + "/{id}/tool-buffering",
            Role.USER,
            buffering,
            "How its tool calls are sent",
            ToolBufferingBody,
            KeyView,
        ),
    ]


def _record_endpoints(management: Management) -> list[Endpoint]:
    async def usage(call: Call) -> Page[UsageView]:
        return await management.usage.list(
            call.caller, _usage_filter(call), before=call.query.get("before", ""), limit=_limit(call)
        )

    async def totals(call: Call) -> TotalsView:
        return await management.usage.totals(call.caller, _usage_filter(call))

    async def prune(call: Call) -> PruneView:
        body = call.read(PruneBody)
        return await management.usage.prune(call.caller, body.before_utc_s, dry_run=body.dry_run)

    async def contributions(call: Call) -> list[ContributionView]:
        return await management.contributions.of_request(call.caller, call.path["request"])

    async def audit(call: Call) -> Page[AuditView]:
        return await management.audit.list(
            call.caller, before=call.query.get("before", ""), limit=_limit(call)
        )

    async def verify(call: Call) -> ChainView:
        return await management.audit.verify(call.caller)

    paging = {"before": "the 'next' of the page before", "limit": "items of a page, at most 1000"}
    chosen = {"model": "only this model", "principal": "only this principal"}
    user, operator = Role.USER, Role.OPERATOR
    return [
        Endpoint(
            "GET", "/api/v1/usage", user, usage, "Usage records", gives=Page[UsageView], query=paging | chosen
        ),
        Endpoint("GET", "/api/v1/usage/totals", user, totals, "Sums", gives=TotalsView, query=chosen),
        Endpoint(
            "POST", "/api/v1/usage/prune", Role.ADMIN, prune, "Remove old records", PruneBody, PruneView
        ),
        Endpoint(
            "GET",
            "/api/v1/usage/{request}/contributions",
            operator,
            contributions,
            "Who made an answer",
            gives=list[ContributionView],
        ),
        Endpoint(
            "GET", "/api/v1/audit", operator, audit, "Audit events", gives=Page[AuditView], query=paging
        ),
        Endpoint("GET", "/api/v1/audit/verify", operator, verify, "Check the chain", gives=ChainView),
    ]


def _usage_filter(call: Call) -> UsageFilter:
    return UsageFilter(principal_id=call.query.get("principal", ""), model=call.query.get("model", ""))


def _limit(call: Call) -> int:
    return call.whole_number("limit", 100, PAGE_ITEMS_MAX)


def _data_class(text: str) -> DataClass:
    try:
        return DataClass.parse(text)
    except ValueError as error:
        raise BadRequest(str(error), param="data_class") from error


def _one_of(kind: Any, text: str, name: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise BadRequest(f"'{name}' must be one of {known}.", param=name) from None
