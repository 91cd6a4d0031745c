"""The addresses at which a gateway process takes requests, and the limits that hold there."""

from panal.core.settings import Settings
from panal.gateway.http_protocol import HttpLimits


def http_limits(settings: Settings) -> HttpLimits:
    gateway = settings.gateway
    return HttpLimits(
        header_s_max=gateway.header_s_max,
        body_gap_s_max=gateway.body_gap_s_max,
        body_s_max=gateway.body_s_max,
        keep_alive_s_max=gateway.keep_alive_s_max,
        header_bytes_max=gateway.header_bytes_max,
        headers_max=gateway.headers_max,
        body_bytes_max=gateway.body_bytes_max,
        write_stall_s_max=gateway.write_stall_s_max,
    )
