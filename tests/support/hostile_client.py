"""Another program's NATS client (nats-py), to try what our own client would never do."""

import asyncio
import base64
import contextlib
import gc
import ssl
import warnings
from collections.abc import AsyncIterator

import nats
from nats.aio.client import Client

from panal.bus.nkeys import SigningKey
from tests.support.nats_installation import NatsInstallation


class Hostile:
    """One connection. ``complaints``: what the server said against it, in lower case."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.heard: list[tuple[str, bytes]] = []
        self.client: Client

    async def publish(self, subject: str, payload: bytes = b"x") -> None:
        await self.client.publish(subject, payload)
        await self.client.flush()

    async def subscribe(self, subject: str) -> None:
        async def note(message: object) -> None:
            self.heard.append((message.subject, message.data))  # type: ignore[attr-defined]

        await self.client.subscribe(subject, cb=note)
        await self.client.flush()

    async def refused(self) -> bool:
        """Whether the server complained about what was sent before."""
        await self.client.flush()
        await asyncio.sleep(0)
        return any("permissions violation" in complaint for complaint in self.complaints)


@contextlib.asynccontextmanager
async def hostile(
    installation: NatsInstallation, credential: str, key: SigningKey, *, trusted: ssl.SSLContext | None = None
) -> AsyncIterator[Hostile]:
    """Connect with any credential and key. Raises nats.errors.Error when the server refuses."""
    bad = Hostile()

    async def on_error(error: Exception) -> None:
        bad.complaints.append(str(error).lower())

    bad.client = await nats.connect(
        installation.server.url,
        tls=trusted or installation.servers.tls,
        tls_handshake_first=True,
        user_jwt_cb=lambda: bytearray(credential.encode()),
        signature_cb=lambda nonce: base64.urlsafe_b64encode(key.sign(nonce.encode())).rstrip(b"="),
        error_cb=on_error,
        allow_reconnect=False,
        connect_timeout=15,
        inbox_prefix=b"panal.up.inbox",
    )
    try:
        yield bad
    finally:
        with contextlib.suppress(nats.errors.Error):
            await bad.client.close()


async def is_refused(installation: NatsInstallation, credential: str, key: SigningKey) -> bool:
    """Whether the server does not let this pair in. Any other trouble is raised."""
    try:
        async with hostile(installation, credential, key):
            return False
    except nats.errors.Error as error:
        said = str(error).lower()
        if "authorization violation" not in said:
            raise
    await asyncio.sleep(0)
    with warnings.catch_warnings():
        # nats-py leaves the streams of a refused connection open: collected here, they trouble no other test.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    return True
