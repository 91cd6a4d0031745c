"""Aliases: other names for models. Make, lead elsewhere, rename, remove; in force within two seconds.

An alias leads to a model by the model's own name, never to another alias. It cannot be made under the name of
a model that was ever served here; where a node serves such a model later, the alias wins.
"""

import msgspec

from panal.core.errors import Conflict, NotAllowed, NotFound
from panal.core.names import name_key
from panal.core.principals import Principal, Role
from panal.core.records import AliasRecord
from panal.management.means import PAGE_ITEMS, Means, Page, page_items, require
from panal.management.model_names import checked_name
from panal.policy.access import may_use
from panal.store import Transaction


class AliasView(msgspec.Struct, frozen=True, kw_only=True):
    """``name`` is what clients may say, ``model`` the own name of the model that answers."""

    name: str
    model: str
    created_utc_s: float
    changed_utc_s: float


class AliasOperations:
    def __init__(self, means: Means) -> None:
        self._means = means

    async def list(self, actor: Principal, *, after: str = "", limit: int = PAGE_ITEMS) -> Page[AliasView]:
        """Those that the caller's key may use, in order of their names. Raises StoreError."""
        async with self._means.store.reading() as tx:
            records = await tx.aliases.list(actor.tenant_id, after=after, limit=page_items(limit))
        following = records[-1].key if len(records) == page_items(limit) else ""
        return Page([_view(record) for record in records if may_use(actor, record.key)], following)

    async def set(self, actor: Principal, name: str, model: str) -> AliasView:
        """Needs ADMIN. Makes an alias, or leads the one that is there to another model.

        Raises NotAllowed, BadRequest, NotFound (model), Conflict (name of a model), StoreError.
        """
        require(actor, Role.ADMIN)
        means = self._means
        name = checked_name(name, "name")
        async with means.store.transaction() as tx:
            target = await _model(tx, actor, model)
            before = await tx.aliases.get(actor.tenant_id, name)
            _check_own(actor, name, target)
            now_utc_us = means.now_utc_us()
            if before is None:
                await _check_free(tx, actor, name)
                made = AliasRecord(
                    tenant_id=actor.tenant_id,
                    project_id=actor.project_id,
                    name=name,
                    model=target,
                    created_utc_us=now_utc_us,
                    changed_utc_us=now_utc_us,
                )
                await tx.aliases.add(made)
                await means.audit(tx, actor, "alias.create", name, {"model": target})
            else:
                await tx.aliases.set_model(actor.tenant_id, name, target, now_utc_us)
                details: dict[str, str | int | bool] = {"model": target, "before": before.model}
                await means.audit(tx, actor, "alias.change", before.name, details)
            found = await _alias(tx, actor, name)
        means.notify()
        return _view(found)

    async def rename(self, actor: Principal, name: str, new_name: str) -> AliasView:
        """Needs ADMIN. The old name is unknown from now on; keys that may use it may use the new one.

        Raises NotAllowed, BadRequest, NotFound, Conflict (the new name is taken), StoreError.
        """
        require(actor, Role.ADMIN)
        means = self._means
        new_name = checked_name(new_name, "name")
        async with means.store.transaction() as tx:
            before = await _alias(tx, actor, name)
            _check_own(actor, before.name)
            if name_key(new_name) != before.key:
                await _check_free(tx, actor, new_name)
            await tx.aliases.rename(actor.tenant_id, name, new_name, means.now_utc_us())
            keys = await tx.api_keys.rename_model(actor.tenant_id, before.name, new_name)
            details: dict[str, str | int | bool] = {"name": new_name, "keys": keys}
            await means.audit(tx, actor, "alias.rename", before.name, details)
            found = await _alias(tx, actor, new_name)
        means.notify()
        return _view(found)

    async def remove(self, actor: Principal, name: str) -> AliasView:
        """Needs ADMIN. The name is unknown from now on; keys that are restricted to it stay restricted.

        Raises NotAllowed, NotFound, StoreError.
        """
        require(actor, Role.ADMIN)
        async with self._means.store.transaction() as tx:
            before = await _alias(tx, actor, name)
            _check_own(actor, before.name)
            await tx.aliases.remove(actor.tenant_id, name)
            await self._means.audit(tx, actor, "alias.remove", before.name, {"model": before.model})
        self._means.notify()
        return _view(before)


def _check_own(actor: Principal, *names: str) -> None:
    """A key that is restricted to names cannot reach other models through them. Raises NotAllowed."""
    for name in names:
        if not may_use(actor, name_key(name)):
            raise NotAllowed(f"Your own key may not use '{name}', so it cannot change what leads there.")


async def _alias(tx: Transaction, actor: Principal, name: str) -> AliasRecord:
    found = await tx.aliases.get(actor.tenant_id, name)
    if found is None:
        raise NotFound(f"There is no alias '{name[:100]}'. 'panal models alias list' shows them.")
    return found


async def _model(tx: Transaction, actor: Principal, wanted: str) -> str:
    """The own name of a model that was served here, as it was first written."""
    key = name_key(checked_name(wanted, "model"))
    for record in sorted(await tx.models.all(), key=lambda record: record.first_seen_utc_us):
        if name_key(record.name) == key:
            return record.name
    why = "an alias leads to a model, not to another alias"
    if await tx.aliases.get(actor.tenant_id, wanted) is None:
        why = "no node has served one of that name yet"
    raise NotFound(f"There is no model '{wanted}': {why}. 'panal models list' shows them.")


async def _check_free(tx: Transaction, actor: Principal, name: str) -> None:
    key = name_key(name)
    if any(name_key(record.name) == key for record in await tx.models.all()):
        raise Conflict(f"'{name}' is the name of a model that is or was served here. Choose another one.")
    if await tx.aliases.get(actor.tenant_id, name) is not None:
        raise Conflict(f"There is an alias '{name}' already; names are compared without regard to case.")


def _view(record: AliasRecord) -> AliasView:
    return AliasView(
        name=record.name,
        model=record.model,
        created_utc_s=record.created_utc_us / 1_000_000,
        changed_utc_s=record.changed_utc_us / 1_000_000,
    )
