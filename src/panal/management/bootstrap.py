"""The first start: somebody must have the first keys."""

from collections.abc import Callable
from dataclasses import dataclass

from panal.core.clock import Clock
from panal.core.errors import SettingsError
from panal.core.ids import DEFAULT_PROJECT, DEFAULT_TENANT, ApiKeyId, IdSource
from panal.core.nodes import DataClass
from panal.core.principals import Principal, Role
from panal.core.records import ApiKeyRecord, utc_us
from panal.identity.api_keys import digest_of, new_key, shown_part
from panal.store import Store
from panal.store.principals import PrincipalRecord


@dataclass(frozen=True, slots=True)
class FirstKeys:
    """The secrets of the first two keys, to be shown once."""

    user_secret: str
    admin_secret: str


async def bootstrap(
    store: Store,
    *,
    ids: IdSource,
    clock: Clock,
    entropy: Callable[[int], bytes],
    pepper: bytes,
    keep: Callable[[FirstKeys], None],
) -> FirstKeys | None:
    """Makes the default principal with a user key and an admin key, once in a database's life.

    ``keep`` puts the secrets where they survive, before the database holds their hashes: a kill in
    between leaves keys that do not work, and the next start makes others. If it raises, nothing is made.
    None at every later start, also when several programs start at once. Raises StoreError, and
    SettingsError where ``keep`` raised OSError.
    """
    async with store.reading() as tx:
        if await tx.revisions.current("bootstrap") > 0:
            return None
    async with store.transaction() as tx:
        if await tx.revisions.advance("bootstrap") > 1:
            return None
        owner = PrincipalRecord(
            principal_id=ids.principal(),
            tenant_id=DEFAULT_TENANT,
            project_id=DEFAULT_PROJECT,
            name="default",
            disabled=False,
            created_utc_us=utc_us(clock),
        )
        await tx.principals.add(owner)
        secrets = []
        for role in (Role.USER, Role.ADMIN):
            secret = new_key(entropy)
            secrets.append(secret)
            record = _record(owner, role, secret, ids, pepper)
            await tx.api_keys.add(record)
            await tx.audit.append(
                event_id=ids.other("evt"),
                actor=_nobody_yet(owner),
                action="key.create",
                target=record.key_id,
                now_utc_us=owner.created_utc_us,
                details={"role": role.value, "first_start": True},
            )
        keys = FirstKeys(user_secret=secrets[0], admin_secret=secrets[1])
        try:
            keep(keys)
        except OSError as error:
            raise SettingsError(f"The first keys cannot be kept ({error.strerror}).") from error
    return keys


def _record(owner: PrincipalRecord, role: Role, secret: str, ids: IdSource, pepper: bytes) -> ApiKeyRecord:
    return ApiKeyRecord(
        key_id=ids.api_key(),
        tenant_id=owner.tenant_id,
        project_id=owner.project_id,
        principal_id=owner.principal_id,
        name=f"first {role.value} key",
        digest=digest_of(pepper, secret.encode()),
        shown=shown_part(secret),
        role=role,
        data_class=DataClass.INTERNAL,
        residency=frozenset(),
        created_utc_us=owner.created_utc_us,
    )


def _nobody_yet(owner: PrincipalRecord) -> Principal:
    """The program itself acts: there is no key yet."""
    return Principal(
        principal_id=owner.principal_id,
        tenant_id=owner.tenant_id,
        project_id=owner.project_id,
        role=Role.ADMIN,
        key_id=ApiKeyId(""),
    )
