"""Routes over all gateway processes of this host: their metrics as one, and which there are."""

import msgspec

from panal.core.principals import Role
from panal.gateway.endpoints import Call, Endpoint, Text
from panal.telemetry.exchange import ProcessSeen, Shown


class Processes(msgspec.Struct):
    """The gateway processes of the host that answers. ``leads``: it is the installation's controller."""

    processes: list[ProcessSeen]


def metrics_endpoints(shown: Shown) -> list[Endpoint]:
    async def metrics(_call: Call) -> Text:
        return Text(await shown.text(), "text/plain; version=0.0.4; charset=utf-8")

    return [
        Endpoint("GET", "/metrics", Role.OPERATOR, metrics, "Prometheus metrics of this host's processes")
    ]


def process_endpoints(shown: Shown) -> list[Endpoint]:
    async def processes(_call: Call) -> Processes:
        return Processes(list(await shown.processes()))

    return [
        Endpoint(
            "GET",
            "/api/v1/processes",
            Role.OPERATOR,
            processes,
            "Gateway processes of this host",
            gives=Processes,
        ),
    ]
