"""Routes for everybody and for clients' keys: health, readiness, models, joining."""

from collections.abc import Callable

import msgspec

from panal.core.principals import Role
from panal.gateway.endpoints import Call, Endpoint
from panal.gateway.gateway import Gateway
from panal.gateway.readiness import Readiness
from panal.identity.enrolment import Enrolment
from panal.protocol.joining import Admission, Authority, CredentialRequest, JoinRequest


class Health(msgspec.Struct):
    """``utc_s`` is the gateway's clock, by which nodes see whether theirs is wrong."""

    status: str
    utc_s: float


class Model(msgspec.Struct):
    """OpenAI's model object. ``created`` is when it was first served here, UTC seconds."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "panal"


class Models(msgspec.Struct):
    data: list[Model]
    object: str = "list"


def client_endpoints(gateway: Gateway) -> list[Endpoint]:
    """What clients and probes call."""

    async def health(_call: Call) -> Health:
        return Health("ok", gateway.clock.utc_seconds())

    async def ready(_call: Call) -> Readiness:
        return gateway.readiness()

    async def models(call: Call) -> Models:
        return Models([Model(name) for name in gateway.names.of(call.caller)])

    async def model(call: Call) -> Model:
        return Model(gateway.names.one(call.caller, call.path["name"]))

    return [
        Endpoint("GET", "/health", None, health, "Whether the process lives", gives=Health),
        Endpoint("GET", "/ready", None, ready, "Whether requests can be answered", gives=Readiness),
        Endpoint("GET", "/v1/models", Role.USER, models, "Names that the key may use", gives=Models),
        Endpoint("GET", "/v1/models/{name:path}", Role.USER, model, "One model", gives=Model),
    ]


def join_endpoints(enrolment: Enrolment, told: Callable[[], Authority]) -> list[Endpoint]:
    """What a machine calls before it has a place on the bus. The token or a signature is its right."""

    async def authority(_call: Call) -> Authority:
        return told()

    async def join(call: Call) -> Admission:
        return await enrolment.admit(call.read(JoinRequest), call.peer)

    async def credential(call: Call) -> Admission:
        return await enrolment.fresh_credential(call.read(CredentialRequest), call.peer)

    return [
        Endpoint(
            "GET", "/join/v1/authority", None, authority, "The CA of this installation", gives=Authority
        ),
        Endpoint(
            "POST",
            "/join/v1/nodes",
            None,
            join,
            "Become a node",
            takes=JoinRequest,
            gives=Admission,
            status=201,
        ),
        Endpoint(
            "POST",
            "/join/v1/credentials",
            None,
            credential,
            "A fresh bus credential",
            takes=CredentialRequest,
            gives=Admission,
        ),
    ]
