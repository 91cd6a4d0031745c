"""Mints what the bus accepts and takes it back: the authority, its file and the running servers joined."""

import os
from collections.abc import Callable
from pathlib import Path

from panal.bus.authority_file import reread_revocations, save_revocations
from panal.bus.claims_update import push_claims
from panal.bus.connector import Servers
from panal.bus.credentials import Authority
from panal.core.clock import Clock
from panal.core.ids import NodeKey

_PUSHES_MAX = 10


class NatsIssuer:
    """Implements identity.seams.CredentialIssuer over NATS in operator mode."""

    def __init__(
        self,
        authority: Authority,
        file: Path,
        servers: Servers,
        clock: Clock,
        *,
        randomness: Callable[[], float],
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._authority = authority
        self._file = file
        self._servers = servers
        self._clock = clock
        self._randomness = randomness
        self._entropy = entropy

    def node_credential(self, node_key: NodeKey, valid_s: int) -> str:
        return self._authority.node_credential(node_key, valid_s)

    async def revoke(self, node_key: NodeKey) -> None:
        """Write it down first, then tell the servers: a crash between the two forgets nothing.

        Raises BusError when no server confirmed it; SettingsError when the file cannot be written.
        """
        self._authority.revoke(node_key, int(self._clock.utc_seconds()))
        save_revocations(self._file, self._authority)
        for _ in range(_PUSHES_MAX):
            pushed = self._authority.revocations
            await push_claims(
                self._servers,
                self._authority,
                self._authority.account_jwt(),
                entropy=self._entropy,
                randomness=self._randomness,
            )
            reread_revocations(self._file, self._authority)
            if self._authority.revocations == pushed:
                return
            # Another program revoked meanwhile; our claims may have replaced its: push all of them.
