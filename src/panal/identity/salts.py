"""A secret word for each tenant that keeps prefix caches of engines apart (SEC-13)."""

import hashlib
import hmac

from panal.core.ids import TenantId

KNOWN_MAX = 10_000
_LABEL = b"panal prefix cache salt v1"


class TenantSalts:
    """64 hex digits by tenant, from a key that is derived for this purpose alone."""

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, _LABEL, "sha256")
        self._known: dict[TenantId, str] = {}

    def of(self, tenant: TenantId) -> str:
        salt = self._known.get(tenant)
        if salt is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            salt = self._known[tenant] = hmac.new(self._key, tenant.encode(), hashlib.sha256).hexdigest()
        return salt
