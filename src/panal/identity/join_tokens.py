"""Join tokens: what lets a machine in, made once and kept as a hash."""

import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from panal.core.clock import Clock
from panal.core.errors import BadRequest
from panal.core.ids import IdSource
from panal.core.nodes import DataClass, NodeClass
from panal.core.principals import Principal
from panal.core.records import JoinTokenRecord, utc_us
from panal.protocol.joining import JoinToken

LIFE_S_DEFAULT = 3600
LIFE_S_MAX = 24 * 3600
USES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class TokenWish:
    """What a new token shall admit: ``uses`` machines within ``life_s``, each becoming this."""

    node_class: NodeClass = NodeClass.DESKTOP
    site: str = ""
    country: str = ""
    data_class: DataClass = DataClass.INTERNAL
    uses: int = 1
    life_s: int = LIFE_S_DEFAULT
    approve: bool = False


def new_token(
    wish: TokenWish,
    *,
    creator: Principal,
    pin: str,
    ids: IdSource,
    clock: Clock,
    entropy: Callable[[int], bytes],
) -> tuple[JoinToken, JoinTokenRecord]:
    """A token to be shown once, and what is kept of it. ``pin``: see ``panal.protocol.joining``.

    Raises BadRequest when uses, life, country or site are out of bounds.
    """
    _check(wish)
    token = JoinToken(id=_letters(entropy(7))[:10], secret=_letters(entropy(20)), pin=pin)
    now_utc_us = utc_us(clock)
    record = JoinTokenRecord(
        token_id=ids.join_token(),
        public_id=token.id,
        tenant_id=creator.tenant_id,
        project_id=creator.project_id,
        created_by=creator.principal_id,
        digest=secret_digest(token),
        uses_left=wish.uses,
        created_utc_us=now_utc_us,
        expires_utc_us=now_utc_us + wish.life_s * 1_000_000,
        node_class=wish.node_class,
        site=wish.site,
        country=wish.country,
        data_class=wish.data_class,
        approve=wish.approve,
    )
    return token, record


def secret_digest(token: JoinToken) -> bytes:
    """SHA-256 of id and secret; 160 random bits need no slow hash."""
    return hashlib.sha256(f"{token.id}_{token.secret}".encode()).digest()


def same_secret(token: JoinToken, record: JoinTokenRecord | None) -> bool:
    """Compares in constant time, also when there is no record."""
    expected = record.digest if record is not None else bytes(32)
    equal = hmac.compare_digest(secret_digest(token), expected)
    return equal and record is not None


def why_unusable(record: JoinTokenRecord, now_utc_us: int) -> str | None:
    """A sentence for somebody who has the secret, or None when the token is good."""
    if record.revoked_utc_us is not None:
        return "This join token was revoked."
    if record.expires_utc_us <= now_utc_us:
        return "This join token has expired."
    if record.uses_left <= 0:
        return "This join token has been used up."
    return None


def _check(wish: TokenWish) -> None:
    if not 1 <= wish.uses <= USES_MAX:
        raise BadRequest(f"A join token has 1 to {USES_MAX} uses.", param="uses")
    if not 1 <= wish.life_s <= LIFE_S_MAX:
        raise BadRequest("A join token lives at least a second and at most 24 hours.", param="life_s")
    if wish.country and not (len(wish.country) == 2 and wish.country.isascii() and wish.country.isupper()):
        raise BadRequest("A country is two capital letters, such as DE.", param="country")
    if len(wish.site) > 64 or not all(mark.isalnum() or mark in "-_. " for mark in wish.site):
        raise BadRequest("A site is up to 64 letters, digits, spaces and -_. .", param="site")


def _letters(raw: bytes) -> str:
    return base64.b32encode(raw).decode().lower().rstrip("=")
