"""Mints what the bus accepts and takes it back: the authority, its file and the running servers joined."""

import asyncio
import os
from collections.abc import Callable, Iterable
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
        self._one_push = asyncio.Lock()
        self._confirmed: dict[str, int] | None = None
        """What a server is known to have; None until the first push of this process."""

    def node_credential(self, node_key: NodeKey, valid_s: int) -> str:
        return self._authority.node_credential(node_key, valid_s)

    async def revoke(self, node_key: NodeKey) -> None:
        """Write it down first, then tell the servers: a crash between the two forgets nothing.

        Raises BusError when no server confirmed it; SettingsError when the file cannot be written.
        """
        self._authority.revoke(node_key, int(self._clock.utc_seconds()))
        save_revocations(self._file, self._authority)
        await self._push()

    async def ensure_revoked(self, node_keys: Iterable[NodeKey]) -> None:
        """Make good what a crash or an absent bus left undone; costs nothing when all is well.

        Keys that are not written down as revoked are; the servers are told unless they have confirmed
        just these revocations to this process. Raises BusError, SettingsError as ``revoke`` does.
        """
        known = self._authority.revocations
        missing = [key for key in node_keys if key not in known]
        if missing:
            now_utc_s = int(self._clock.utc_seconds())
            self._authority.merge_revocations(dict.fromkeys(missing, now_utc_s))
            save_revocations(self._file, self._authority)
        if self._confirmed != self._authority.revocations:
            await self._push()

    async def _push(self) -> None:
        """Tell the servers all that is revoked, and again when another program revoked meanwhile."""
        async with self._one_push:
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
                    self._confirmed = pushed
                    return
                # Ours may have replaced the other program's claims: push all of them.
