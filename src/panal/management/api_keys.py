"""API keys: create, list, restrict, revoke. Nobody makes a key that may do more than their own."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import msgspec

from panal.core.errors import BadRequest, NotAllowed, NotFound
from panal.core.ids import ApiKeyId, PrincipalId
from panal.core.names import name_key
from panal.core.nodes import DataClass
from panal.core.principals import Principal, Role
from panal.core.records import ApiKeyRecord
from panal.identity.api_keys import digest_of, new_key, shown_part
from panal.management.means import PAGE_ITEMS, Means, Page, exceeds, has, page_items, require, seconds
from panal.management.model_names import checked_models
from panal.policy.body_rules import TOOL_BUFFERING
from panal.policy.limits import Limit
from panal.store import Transaction
from panal.store.principals import PrincipalRecord

LIFE_S_MAX = 10 * 365 * 24 * 3600
NAME_CHARACTERS_MAX = 100


@dataclass(frozen=True, slots=True)
class KeyWish:
    """What a new key shall be. None means: as the maker's own key.

    ``principal_id`` is its owner (empty: the maker); ``new_principal`` names one to be made instead.
    ``life_s`` None: the key does not expire by itself. ``models``: the names that it may use; empty: all.
    """

    name: str = ""
    role: Role = Role.USER
    data_class: DataClass | None = None
    residency: frozenset[str] | None = None
    life_s: int | None = None
    principal_id: str = ""
    new_principal: str = ""
    models: frozenset[str] | None = None


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key without its secret. ``state``: good | expired | revoked."""

    id: str
    name: str
    shown: str
    state: str
    principal: str
    role: str
    data_class: str
    residency: list[str]
    models: list[str]
    """The names of models that it may use; empty: all."""
    tool_buffering: str
    """stream | whole: how tool calls are sent where a request does not say."""
    limits: dict[str, int]
    """The key's own limits, such as tokens_per_minute; those of its project and tenant bind it too."""
    created_utc_s: float
    expires_utc_s: float | None
    last_used_utc_s: float | None


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """``secret`` is shown here once and never again."""

    secret: str
    view: KeyView


class ApiKeyOperations:
    def __init__(self, means: Means) -> None:
        self._means = means

    async def create(self, actor: Principal, wish: KeyWish) -> NewKey:
        """Anybody may make keys for themselves; for others needs ADMIN.

        Raises NotAllowed (more rights than the maker's), BadRequest, NotFound (owner), StoreError.
        """
        means = self._means
        _check(wish)
        _check_rights(actor, wish)
        secret = new_key(means.entropy)
        async with means.store.transaction() as tx:
            owner = await self._owner(tx, actor, wish)
            own = await tx.api_keys.get(actor.tenant_id, actor.key_id)
            record = self._record(actor, wish, owner, own, secret)
            _check_life(actor, own, record)
            await tx.api_keys.add(record)
            details: dict[str, str | int | bool] = {
                "principal": owner.principal_id,
                "role": record.role.value,
                "data_class": record.data_class.label,
                "models": ", ".join(sorted(record.models)) or "all",
            }
            await means.audit(tx, actor, "key.create", record.key_id, details)
        means.notify()
        return NewKey(secret=secret, view=self._view(record))

    async def list(self, actor: Principal, *, after: str = "", limit: int = PAGE_ITEMS) -> Page[KeyView]:
        """Users see their own keys, OPERATOR all of the tenant. Raises StoreError."""
        of = None if has(actor, Role.OPERATOR) else actor.principal_id
        async with self._means.store.reading() as tx:
            records = await tx.api_keys.list(actor.tenant_id, after=after, limit=page_items(limit), of=of)
            limits = await tx.limits.list(actor.tenant_id, [record.key_id for record in records])
        following = records[-1].key_id if len(records) == page_items(limit) else ""
        return Page([self._view(record, limits) for record in records], following)

    async def revoke(self, actor: Principal, key_id: str) -> KeyView:
        """Own keys, or with ADMIN any; doing it twice is no error. Raises NotFound, StoreError.

        Another's key is not found rather than forbidden, so that ids cannot be probed.
        """
        means = self._means
        async with means.store.transaction() as tx:
            before = await self._own_or_any(tx, actor, key_id)
            if await tx.api_keys.revoke(actor.tenant_id, before.key_id, means.now_utc_us()):
                await means.audit(tx, actor, "key.revoke", before.key_id)
            after = await tx.api_keys.get(actor.tenant_id, before.key_id)
            limits = await tx.limits.list(actor.tenant_id, [before.key_id])
        means.notify()
        return self._view(after or before, limits)

    async def set_models(self, actor: Principal, key_id: str, models: Collection[str]) -> KeyView:
        """Needs ADMIN. The names that the key may use from now on; none: all.

        In force everywhere within two seconds. Raises NotAllowed, BadRequest, NotFound, StoreError.
        """
        require(actor, Role.ADMIN)
        means = self._means
        wanted = checked_models(models)
        _check_names(actor, wanted)
        async with means.store.transaction() as tx:
            before = await tx.api_keys.get(actor.tenant_id, ApiKeyId(key_id))
            if before is None:
                raise NotFound("There is no such key.")
            await tx.api_keys.set_models(actor.tenant_id, before.key_id, wanted)
            details: dict[str, str | int | bool] = {"models": ", ".join(sorted(wanted)) or "all"}
            await means.audit(tx, actor, "key.models", before.key_id, details)
            limits = await tx.limits.list(actor.tenant_id, [before.key_id])
        means.notify()
        return self._view(replace(before, models=wanted), limits)

    async def set_tool_buffering(self, actor: Principal, key_id: str, value: str) -> KeyView:
        """Own keys, or with ADMIN any: how their tool calls are sent where a request does not say.

        In force everywhere within two seconds. Raises BadRequest, NotFound, StoreError.
        """
        if value not in TOOL_BUFFERING:
            raise BadRequest("'value' must be 'stream' or 'whole'.", param="value")
        means, whole = self._means, value == "whole"
        async with means.store.transaction() as tx:
            before = await self._own_or_any(tx, actor, key_id)
            await tx.api_keys.set_tools_whole(actor.tenant_id, before.key_id, whole)
            await means.audit(tx, actor, "key.tool_buffering", before.key_id, {"value": value})
            limits = await tx.limits.list(actor.tenant_id, [before.key_id])
        means.notify()
        return self._view(replace(before, tools_whole=whole), limits)

    async def _own_or_any(self, tx: Transaction, actor: Principal, key_id: str) -> ApiKeyRecord:
        """The key, if it is the actor's or the actor an ADMIN."""
        found = await tx.api_keys.get(actor.tenant_id, ApiKeyId(key_id))
        mine = found is not None and found.principal_id == actor.principal_id
        if found is None or not (mine or has(actor, Role.ADMIN)):
            raise NotFound("There is no such key.")
        return found

    async def disable_principal(self, actor: Principal, principal_id: str) -> None:
        """Needs ADMIN. All keys of that principal die. Raises NotAllowed, NotFound, StoreError."""
        require(actor, Role.ADMIN)
        async with self._means.store.transaction() as tx:
            if not await tx.principals.disable(actor.tenant_id, PrincipalId(principal_id)):
                raise NotFound("There is no such principal.")
            await self._means.audit(tx, actor, "principal.disable", principal_id)
        self._means.notify()

    async def _owner(self, tx: Transaction, actor: Principal, wish: KeyWish) -> PrincipalRecord:
        if wish.new_principal:
            record = PrincipalRecord(
                principal_id=self._means.ids.principal(),
                tenant_id=actor.tenant_id,
                project_id=actor.project_id,
                name=wish.new_principal,
                disabled=False,
                created_utc_us=self._means.now_utc_us(),
            )
            await tx.principals.add(record)
            return record
        wanted = PrincipalId(wish.principal_id or actor.principal_id)
        found = await tx.principals.get(actor.tenant_id, wanted)
        if found is None or found.disabled:
            raise NotFound("There is no such principal, or it is disabled.")
        return found

    def _record(
        self,
        actor: Principal,
        wish: KeyWish,
        owner: PrincipalRecord,
        own: ApiKeyRecord | None,
        secret: str,
    ) -> ApiKeyRecord:
        now_utc_us = self._means.now_utc_us()
        as_own = actor.models if own is None else own.models
        return ApiKeyRecord(
            key_id=self._means.ids.api_key(),
            tenant_id=owner.tenant_id,
            project_id=owner.project_id,
            principal_id=owner.principal_id,
            name=wish.name,
            digest=digest_of(self._means.pepper, secret.encode()),
            shown=shown_part(secret),
            role=wish.role,
            data_class=actor.data_class if wish.data_class is None else wish.data_class,
            residency=actor.residency if wish.residency is None else wish.residency,
            created_utc_us=now_utc_us,
            expires_utc_us=None if wish.life_s is None else now_utc_us + wish.life_s * 1_000_000,
            models=as_own if wish.models is None else checked_models(wish.models),
        )

    def _view(self, record: ApiKeyRecord, limits: Sequence[Limit] = ()) -> KeyView:
        return KeyView(
            id=record.key_id,
            name=record.name,
            shown=record.shown,
            state=_state(record, self._means.now_utc_us()),
            principal=record.principal_id,
            role=record.role.value,
            data_class=record.data_class.label,
            residency=sorted(record.residency),
            models=sorted(record.models),
            tool_buffering="whole" if record.tools_whole else "stream",
            limits={limit.kind.value: limit.amount for limit in limits if limit.subject == record.key_id},
            created_utc_s=record.created_utc_us / 1_000_000,
            expires_utc_s=seconds(record.expires_utc_us),
            last_used_utc_s=seconds(record.last_used_utc_us),
        )


def _check(wish: KeyWish) -> None:
    if max(len(wish.name), len(wish.new_principal)) > NAME_CHARACTERS_MAX:
        raise BadRequest(f"A name has at most {NAME_CHARACTERS_MAX} characters.", param="name")
    if wish.principal_id and wish.new_principal:
        raise BadRequest("Give 'principal_id' or 'new_principal', not both.", param="new_principal")
    if wish.life_s is not None and not 1 <= wish.life_s <= LIFE_S_MAX:
        raise BadRequest("A key lives at least a second and at most ten years.", param="life_s")
    for country in wish.residency or ():
        if not (len(country) == 2 and country.isascii() and country.isupper()):
            raise BadRequest("Residency is a list of countries, such as DE.", param="residency")


def _check_rights(actor: Principal, wish: KeyWish) -> None:
    if exceeds(wish.role, actor.role):
        raise NotAllowed(
            f"A key with the role '{actor.role.value}' cannot make one with '{wish.role.value}'."
        )
    if wish.models is not None:
        _check_names(actor, wish.models)
    if has(actor, Role.ADMIN):
        return
    if wish.new_principal or wish.principal_id not in ("", actor.principal_id):
        raise NotAllowed("Keys for others need a key with the role 'admin'.")
    if wish.data_class is not None and wish.data_class < actor.data_class:
        raise NotAllowed(f"Your data is at least {actor.data_class.label}; a key cannot make it less.")
    countries = actor.residency if wish.residency is None else wish.residency
    if actor.residency and not (countries and countries <= actor.residency):
        raise NotAllowed("A key cannot allow more countries than yours.")


def _check_names(actor: Principal, models: Collection[str]) -> None:
    """``models`` empty: all. Raises NotAllowed where these are more than the actor's own."""
    names = frozenset(map(name_key, models))
    if actor.models and not (names and names <= actor.models):
        raise NotAllowed("A key cannot use more models than yours.")


def _check_life(actor: Principal, own: ApiKeyRecord | None, record: ApiKeyRecord) -> None:
    """Below ADMIN a key ends no later than the one it was made with."""
    if has(actor, Role.ADMIN) or own is None or own.expires_utc_us is None:
        return
    if record.expires_utc_us is None or record.expires_utc_us > own.expires_utc_us:
        raise NotAllowed("A key cannot outlive the one it is made with.")


def _state(record: ApiKeyRecord, now_utc_us: int) -> str:
    if record.revoked_utc_us is not None:
        return "revoked"
    if record.expires_utc_us is not None and record.expires_utc_us <= now_utc_us:
        return "expired"
    return "good"
