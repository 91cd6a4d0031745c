"""The bus over NATS: the three sides with clients that stay connected."""

from collections.abc import Callable

from panal.bus.connector import Servers
from panal.bus.credentials import Authority, Login
from panal.bus.nats_client import NatsClient
from panal.bus.nkeys import SigningKey
from panal.bus.sides import ControllerSide, GatewaySide, NodeSide
from panal.core.ids import GatewayId, NodeKey

OWN_CREDENTIAL_S = 3600.0
"""How long the credentials of gateways and controllers live; they change to fresh ones at half time."""


class NatsGatewayBus(GatewaySide):
    """A gateway on NATS: one connection for attempts and frames, one for heartbeats."""

    def __init__(
        self,
        gateway: GatewayId,
        servers: Servers,
        authority: Authority,
        *,
        entropy: Callable[[int], bytes],
        randomness: Callable[[], float],
        credential_s: float = OWN_CREDENTIAL_S,
    ) -> None:
        """``randomness`` gives floats in [0, 1) for back-off; ``entropy(n)`` n random bytes for keys."""
        login = authority.gateway_login(gateway, credential_s, entropy)

        def client(purpose: str) -> NatsClient:
            return NatsClient(
                servers,
                login,
                name=f"{gateway} {purpose}",
                randomness=randomness,
                renew_every_s=credential_s / 2,
            )

        super().__init__(gateway, client("data"), client("news"))


class NatsControllerBus(ControllerSide):
    """The controller on NATS."""

    def __init__(
        self,
        servers: Servers,
        authority: Authority,
        *,
        entropy: Callable[[int], bytes],
        randomness: Callable[[], float],
        credential_s: float = OWN_CREDENTIAL_S,
    ) -> None:
        login = authority.controller_login(credential_s, entropy)
        super().__init__(
            NatsClient(
                servers, login, name="controller", randomness=randomness, renew_every_s=credential_s / 2
            )
        )


class NatsNodeBus(NodeSide):
    """A node on NATS: one connection for attempts and frames, one for heartbeats and reports.

    When the server refuses the credential, ``on_refused`` is told and the connections try on; a call
    of ``renew`` with a fresh one brings them back.
    """

    def __init__(
        self, servers: Servers, key: SigningKey, credential: str, *, randomness: Callable[[], float]
    ) -> None:
        self._credential = credential
        login = Login(lambda: self._credential, key.sign)
        node_key = NodeKey(key.public)

        def client(purpose: str) -> NatsClient:
            return NatsClient(servers, login, name=f"node {purpose}", randomness=randomness)

        super().__init__(node_key, client("data"), client("news"), self._accept)

    def _accept(self, credential: str) -> None:
        self._credential = credential
