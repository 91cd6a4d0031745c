"""Names that clients may use, in the memory of one gateway process: aliases, and models by their own names.

A request costs one or two look-ups in dictionaries and never meets the store. The snapshot of aliases is
replaced whole when it changed; who may use which name comes with the caller (``Principal.models``).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from panal.core.clock import Clock
from panal.core.ids import TenantId
from panal.core.names import name_key
from panal.core.principals import Principal
from panal.core.records import AliasRecord
from panal.dispatch.fleet import Fleet
from panal.policy.access import authorise, may_use
from panal.telemetry.logs import fields

AGE_S_MAX = 300.0
"""All aliases are read again after this time even if the store says that nothing changed."""

WARNED_MAX = 20
"""Names in one warning."""

log = logging.getLogger("panal.gateway")


class NameStore(Protocol):
    """Where aliases are kept. Every method may raise StoreError."""

    async def names_revision(self) -> int:
        """Rises with every change of aliases."""
        ...

    async def every_alias(self) -> Sequence[AliasRecord]: ...


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Aliases of each tenant by the keys of their names; never changed once it is made."""

    of_tenant: Mapping[TenantId, Mapping[str, AliasRecord]] = field(default_factory=dict)


class ServedNames:
    """Call ``refresh`` before serving, each second, and whenever the bus says that something changed."""

    def __init__(self, store: NameStore, fleet: Fleet, clock: Clock) -> None:
        self._store = store
        self._fleet = fleet
        self._clock = clock
        self._snapshot = _Snapshot()
        self._revision = -1
        self._read_at_s = float("-inf")
        self._hidden: frozenset[str] = frozenset()

    def model_of(self, tenant_id: TenantId, name: str) -> str:
        """The own name of the model that a name stands for in this tenant; empty when there is none.

        An alias comes before a model of the same name.
        """
        key = name_key(name)
        aliases = self._snapshot.of_tenant.get(tenant_id)
        if aliases is not None and (alias := aliases.get(key)) is not None:
            return alias.model
        return self._fleet.model_of(key) or ""

    def of(self, principal: Principal) -> list[str]:
        """All names that this caller may use, also of models that rest now, as they are written, sorted."""
        shown = {name_key(model): model for model in self._fleet.models()}
        aliases = self._snapshot.of_tenant.get(principal.tenant_id, {})
        shown |= {key: alias.name for key, alias in aliases.items()}
        return sorted(name for key, name in shown.items() if may_use(principal, key))

    def by_model(self, principal: Principal) -> dict[str, str]:
        """The models that this caller can reach, by their keys, and the name that it may use for each.

        The model's own name comes first, then the aliases by the alphabet.
        """
        aliases = self._snapshot.of_tenant.get(principal.tenant_id, {})
        own = {name_key(model): model for model in self._fleet.models()}
        found = {key: name for key, name in own.items() if key not in aliases and may_use(principal, key)}
        for key, alias in sorted(aliases.items()):
            if may_use(principal, key):
                found.setdefault(name_key(alias.model), alias.name)
        return found

    def one(self, principal: Principal, name: str) -> str:
        """One of these names, as it is written. Raises ModelNotFound, ModelNotAllowed."""
        key = name_key(name)
        alias = self._snapshot.of_tenant.get(principal.tenant_id, {}).get(key)
        found = self._fleet.model_of(key) if alias is None else alias.name
        authorise(principal, name, known=found is not None)
        return found or name

    async def refresh(self) -> None:
        """Reads the aliases again if they changed. Raises StoreError; those known stay in force."""
        asked_at_s = self._clock.monotonic_seconds()
        revision = await self._store.names_revision()
        if revision != self._revision or asked_at_s - self._read_at_s > AGE_S_MAX:
            of_tenant: dict[TenantId, dict[str, AliasRecord]] = {}
            for alias in await self._store.every_alias():
                of_tenant.setdefault(alias.tenant_id, {})[alias.key] = alias
            self._snapshot = _Snapshot(of_tenant)
            self._revision = revision
            self._read_at_s = asked_at_s
        self._warn_of_hidden_models()

    def _warn_of_hidden_models(self) -> None:
        """Says once of each model that an alias has its name: nobody reaches it by that name."""
        hidden = frozenset(
            alias.name
            for aliases in self._snapshot.of_tenant.values()
            for key, alias in aliases.items()
            if self._fleet.model_of(key) is not None and key != name_key(alias.model)
        )
        fresh = sorted(hidden - self._hidden)
        self._hidden = hidden
        if fresh:
            log.warning(
                "nodes serve models under names that are aliases; the aliases win: %s",
                ", ".join(fresh[:WARNED_MAX]),
                extra=fields(action="alias_hides_model", count=len(fresh)),
            )
