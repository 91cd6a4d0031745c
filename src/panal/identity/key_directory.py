"""Who calls? Answered from memory on every request, kept like the store once a second."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from panal.core.clock import Clock
from panal.core.errors import NotAuthenticated, StoreError
from panal.core.ids import ApiKeyId
from panal.core.principals import Principal
from panal.core.records import ApiKeyRecord
from panal.identity.api_keys import KEY_CHARACTERS, PEPPER_BYTES, PREFIX, digest_of, well_formed

AGE_S_MAX = 300.0
"""All keys are read again after this time even if the store says that nothing changed, for the case that
somebody changed the database by hand."""

KEYS_A_TURN = 500
"""How many keys are taken over before the event loop gets its turn."""

DOUBT_S = 5.0
"""Without a refresh for this long, an unknown but well-formed key may be a new one: 503, not 401."""

OUTAGE_S_MAX = 300.0
"""For this long known keys go on while the store is away; then every key is answered 503."""

USE_NOTED_EVERY_S = 60.0

_PREFIX = PREFIX.encode()


class KeySource(Protocol):
    """Where the keys are kept. Every method may raise StoreError."""

    async def keys_revision(self) -> int:
        """Rises with every change of keys or of the principals that own them."""
        ...

    async def usable_keys(self) -> Sequence[ApiKeyRecord]: ...

    async def note_key_use(self, used_utc_us: Mapping[ApiKeyId, int]) -> None: ...


class KeyDirectory:
    """Call ``refresh`` before serving, then each second and whenever the bus says that keys changed."""

    def __init__(
        self, source: KeySource, pepper: bytes, clock: Clock, *, outage_s_max: float = OUTAGE_S_MAX
    ) -> None:
        if len(pepper) != PEPPER_BYTES:
            raise ValueError(f"the pepper must have {PEPPER_BYTES} bytes")
        self._source = source
        self._pepper = pepper
        self._clock = clock
        self._outage_s_max = outage_s_max
        self._callers: dict[bytes, tuple[Principal, float]] = {}
        self._revision = -1
        self._read_at = float("-inf")
        self._confirmed_at = float("-inf")
        self._used: dict[ApiKeyId, float] = {}
        self._use_noted_at = clock.monotonic_seconds()

    def principal_of(self, header_value: bytes | None) -> Principal:
        """The caller of an ``Authorization`` header's value (``Bearer sk-panal-...``).

        Raises NotAuthenticated, with one text for every cause, and StoreError when the store has been
        away for too long to say.
        """
        if header_value is None:
            raise NotAuthenticated
        if header_value[:7].lower() != b"bearer ":
            raise NotAuthenticated
        return self.principal_of_key(header_value[7:].strip())

    def principal_of_key(self, key: bytes) -> Principal:
        """The same for a bare key, as other SDKs send it in a header of its own."""
        if len(key) != KEY_CHARACTERS or not key.startswith(_PREFIX):
            raise NotAuthenticated
        age_s = self._clock.monotonic_seconds() - self._confirmed_at
        if age_s > self._outage_s_max:
            raise StoreError("Keys cannot be checked at the moment.", retry_after_s=5)
        found = self._callers.get(digest_of(self._pepper, key))
        if found is None:
            if age_s > DOUBT_S and well_formed(key.decode("latin-1")):
                raise StoreError("Keys cannot be checked at the moment.", retry_after_s=5)
            raise NotAuthenticated
        principal, expires_utc_s = found
        now_utc_s = self._clock.utc_seconds()
        if now_utc_s >= expires_utc_s:
            raise NotAuthenticated
        self._used[principal.key_id] = now_utc_s
        return principal

    def owner_of(self, header_value: bytes) -> Principal | None:
        """Whose a key is that ``principal_of`` refused since it has expired. None: nobody's that is known."""
        found = self._callers.get(digest_of(self._pepper, header_value[7:].strip()))
        return None if found is None else found[0]

    async def refresh(self) -> None:
        """Reads the keys again if they changed. Raises StoreError; the keys known so far stay in use."""
        asked_at = self._clock.monotonic_seconds()
        revision = await self._source.keys_revision()
        if revision != self._revision or asked_at - self._read_at > AGE_S_MAX:
            self._callers = await _callers(await self._source.usable_keys())
            self._revision = revision
            self._read_at = asked_at
        self._confirmed_at = asked_at
        if asked_at - self._use_noted_at >= USE_NOTED_EVERY_S:
            await self.note_use()

    async def note_use(self) -> None:
        """Writes when keys were last used: from ``refresh`` each minute, and once before a program ends."""
        self._use_noted_at = self._clock.monotonic_seconds()
        used, self._used = self._used, {}
        if not used:
            return
        try:
            await self._source.note_key_use({key: round(when * 1_000_000) for key, when in used.items()})
        except StoreError:
            self._used = used | self._used
            raise

    @property
    def answers(self) -> bool:
        """Whether known keys are believed: the store was there not too long ago."""
        return self._clock.monotonic_seconds() - self._confirmed_at <= self._outage_s_max

    @property
    def known_keys(self) -> int:
        return len(self._callers)


async def _callers(records: Sequence[ApiKeyRecord]) -> dict[bytes, tuple[Principal, float]]:
    callers = {}
    for place, record in enumerate(records):
        callers[record.digest] = (record.principal(), _expiry(record))
        if place % KEYS_A_TURN == KEYS_A_TURN - 1:
            await asyncio.sleep(0)
    return callers


def _expiry(record: ApiKeyRecord) -> float:
    return float("inf") if record.expires_utc_us is None else record.expires_utc_us / 1_000_000
