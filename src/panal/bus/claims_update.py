"""Pushing an account's new claims (revocations) to the running servers."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from panal.bus.connector import Servers
from panal.bus.credentials import CLAIMS_ANSWERS, CLAIMS_UPDATE, Authority, Login
from panal.bus.nats_client import NatsClient
from panal.bus.nkeys import KeyKind, SigningKey
from panal.core.errors import BusError

_CREDENTIAL_S = 60.0


class _Quiet:
    """Hears what the short-lived client says; failures reach the caller as exceptions."""

    def __init__(self) -> None:
        self.trouble = ""

    def on_connection(self, connected: bool) -> None:
        pass

    def on_refused(self, reason: str) -> None:
        self.trouble = reason

    def on_violation(self, text: str) -> None:
        self.trouble = text


async def push_claims(
    servers: Servers,
    authority: Authority,
    account_jwt: str,
    *,
    entropy: Callable[[int], bytes],
    randomness: Callable[[], float],
    timeout_s: float = 5.0,
) -> None:
    """Give the servers an account's new claims and return when one has accepted them.

    Raises BusError when no server answers in time or it declines. Users revoked by the claims are
    disconnected by the server within milliseconds.
    """
    key = SigningKey.create(KeyKind.USER, entropy)
    login = Login(lambda: authority.system_credential(key.public, _CREDENTIAL_S), key.sign)
    client = NatsClient(servers, login, name="claims", randomness=randomness)
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_answer(_subject: bytes, payload: bytes) -> None:
        if not answer.done():
            answer.set_result(payload)

    inbox = f"{CLAIMS_ANSWERS}.{key.public}"
    client.subscribe(inbox, on_answer)
    quiet = _Quiet()
    try:
        await client.start(quiet, timeout_s)
        client.publish(CLAIMS_UPDATE.encode(), account_jwt.encode(), inbox.encode())
        async with asyncio.timeout(timeout_s):
            payload = await answer
    except TimeoutError:
        raise BusError(f"No bus server confirmed the new claims. {quiet.trouble}".strip()) from None
    finally:
        await client.close()
    _check(payload)


def _check(payload: bytes) -> None:
    try:
        answer: dict[str, Any] = json.loads(payload)
        error = answer.get("error")
        code = answer.get("data", {}).get("code", 0)
    except (ValueError, AttributeError):
        raise BusError("The bus server's answer to new claims cannot be read.") from None
    if error or code != 200:
        raise BusError(f"The bus server declined the new claims: {json.dumps(error or answer)[:300]}")
