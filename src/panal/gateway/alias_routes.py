"""Aliases of models in the management API: /api/v1/aliases."""

import msgspec

from panal.core.principals import Role
from panal.gateway.endpoints import Call, Endpoint
from panal.management import Management, Page
from panal.management.aliases import AliasView

PAGE_ITEMS_MAX = 1000


class AliasBody(msgspec.Struct, forbid_unknown_fields=True):
    """The own name of the model to which the alias leads."""

    model: str


class AliasNameBody(msgspec.Struct, forbid_unknown_fields=True):
    """What the alias is called from now on."""

    name: str


def alias_endpoints(management: Management) -> list[Endpoint]:
    """List, make, lead elsewhere, rename, remove. A name in a path is percent-encoded."""
    aliases = management.aliases

    async def listing(call: Call) -> Page[AliasView]:
        limit = call.whole_number("limit", 100, PAGE_ITEMS_MAX)
        return await aliases.list(call.caller, after=call.query.get("after", ""), limit=limit)

    async def change(call: Call) -> AliasView:
        return await aliases.set(call.caller, call.path["name"], call.read(AliasBody).model)

    async def rename(call: Call) -> AliasView:
        return await aliases.rename(call.caller, call.path["name"], call.read(AliasNameBody).name)

    async def remove(call: Call) -> AliasView:
        return await aliases.remove(call.caller, call.path["name"])

    path = "/api/v1/aliases"
    of_one = path + "/{name:path}"
    gives = AliasView
    paging = {"after": "the 'next' of the page before", "limit": "items of a page, at most 1000"}
    return [
        Endpoint("GET", path, Role.USER, listing, "Aliases of models", gives=Page[AliasView], query=paging),
        Endpoint("PUT", of_one, Role.ADMIN, change, "Make an alias or lead it elsewhere", AliasBody, gives),
        Endpoint("PATCH", of_one, Role.ADMIN, rename, "Rename an alias", AliasNameBody, gives),
        Endpoint("DELETE", of_one, Role.ADMIN, remove, "Remove an alias", gives=gives),
    ]
